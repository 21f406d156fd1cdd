package standin_test

import (
	"testing"

	"dagger/parity/internal/msb"
	"dagger/parity/internal/msb/msbtest"
)

// The stand-in is held to the assertions that the real msb is held to.
func TestStandInDoesAsMSB(t *testing.T) {
	path := program(t, "")
	msbtest.Run(t, func(t *testing.T) *msb.Client { return msbtest.NewClient(t, path) })
}
