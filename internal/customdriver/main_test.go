package customdriver_test

import (
	"testing"

	"dagger/parity/internal/lab/labtest"
)

// The tests run in a native lab. The stand-in for msb is the one in parity.
func TestMain(m *testing.M) { labtest.Main(m, "dagger/parity/cmd/parity") }
