package tree_test

import (
	"testing"

	"dagger/parity/internal/lab/labtest"
)

// The tests mount file systems, in a lab of their own.
func TestMain(m *testing.M) { labtest.Main(m) }
