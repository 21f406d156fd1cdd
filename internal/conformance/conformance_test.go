package conformance_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"dagger/parity/fixtures/images"
	"dagger/parity/internal/conformance"
	"dagger/parity/internal/lab"
	"dagger/parity/internal/lab/labtest"
	"dagger/parity/internal/msb"
	"dagger/parity/internal/msb/msbtest"
	"dagger/parity/internal/msbruntime"
	"dagger/parity/internal/runtimeclient"
	"dagger/parity/internal/runtimefake"
	"dagger/parity/internal/runtimeserver"
)

// The tests run in a native lab: the stand-in for msb makes mounts and network links there. Those with real microVMs (microvm_test.go) are
// in a lab already, and have this program for a runtime.
func TestMain(m *testing.M) {
	lab.Reexec()
	if len(os.Args) == 2 && os.Args[1] == "serve" {
		if err := runtimeserver.Serve(msbruntime.New()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	flag.Parse()
	_ = flag.Set("test.parallel", "8") // the faults are waited for more than computed
	labtest.Main(m, "dagger/parity/internal/runtimefake/program", "dagger/parity/cmd/...")
}

func fake(t *testing.T, fault runtimefake.Fault) conformance.Options {
	t.Helper()
	return conformance.Options{Image: "image:1", Runtime: runtimeclient.Command{
		Path: filepath.Join(labtest.Programs(), "program"), Args: []string{"serve"},
		Env: append(os.Environ(), runtimefake.EnvState+"="+t.TempDir(), runtimefake.EnvFault+"="+string(fault)),
	}}
}

// run gives the names of the checks that failed, and how many were not reached.
func run(t *testing.T, o conformance.Options) (failed []string, notReached int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 13*time.Minute) // real microVMs under an emulator are slow
	defer cancel()
	var told []conformance.Result
	results, err := conformance.Run(ctx, o, func(r conformance.Result) { told = append(told, r) })
	if err != nil {
		t.Errorf("the cleaning up: %v", err)
	}
	if len(told) != len(results) {
		t.Errorf("%d of %d results were told", len(told), len(results))
	}
	for i, r := range results {
		t.Logf("%-12s %6.2fs %s", r.Verdict, r.Elapsed.Seconds(), r.Name)
		if name := conformance.Names()[i][0]; r.Name != name {
			t.Errorf("result %d is of %q and not of %q", i, r.Name, name)
		}
		switch r.Verdict {
		case conformance.Fail:
			failed = append(failed, r.Name)
			if r.Expected == "" || r.Seen == "" {
				t.Errorf("%s does not say what was expected and seen: %+v", r.Name, r)
			}
			t.Logf("%s\n  expected %s\n  seen     %s", r.Name, r.Expected, r.Seen)
		case conformance.NotReached:
			notReached++
		case conformance.Inconclusive:
			t.Errorf("%s: %s", r.Name, r.Seen)
		}
	}
	return failed, notReached
}

func TestARuntimeThatIsRight(t *testing.T) {
	o := fake(t, "")
	if failed, notReached := run(t, o); len(failed) > 0 || notReached > 0 {
		t.Errorf("%q failed, and %d were not reached", failed, notReached)
	}
	for _, entry := range o.Runtime.Env {
		if dir, ok := strings.CutPrefix(entry, runtimefake.EnvState+"="); ok {
			if left, _ := filepath.Glob(filepath.Join(dir, "*.json")); len(left) > 0 {
				t.Errorf("%q were left", left)
			}
		}
	}
}

// The reference runtime, over the stand-in for msb.
func TestParityRuntime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "msb") // parity is the stand-in when it is called so
	if err := os.Symlink(filepath.Join(labtest.Programs(), "parity"), path); err != nil {
		t.Fatal(err)
	}
	parityRuntime(t, filepath.Join(labtest.Programs(), "parity-runtime"), msbtest.NewClient(t, path), conformance.Options{})
}

// parityRuntime holds the reference runtime to everything, over an msb.
func parityRuntime(t *testing.T, program string, c *msb.Client, o conformance.Options) {
	t.Helper()
	archive := filepath.Join(t.TempDir(), "image.tar")
	image, err := images.Build(images.Spec{Nonce: "conformance"})
	if err == nil {
		err = errors.Join(images.WriteDockerArchive(archive, "parity.test/conformance:1", image), c.Load(t.Context(), archive))
	}
	if err != nil {
		t.Fatal(err)
	}
	o.Image = "parity.test/conformance:1"
	o.Runtime = runtimeclient.Command{Path: program, Args: []string{"serve"}, Env: append(os.Environ(), "PARITY_MSB="+c.Path, "MSB_HOME="+c.Home)}
	if failed, notReached := run(t, o); len(failed) > 0 || notReached > 0 {
		t.Errorf("%q failed, and %d were not reached", failed, notReached)
	}
	if left, err := c.List(t.Context()); err != nil || len(left) > 0 {
		t.Errorf("%v were left, %v", left, err)
	}
}

// Each fault is caught by the one check that is about it, and each check catches a fault.
func TestEachFaultIsCaughtByItsCheck(t *testing.T) {
	invalid := func(what string) string { return "Exec: " + what + " is InvalidArgument" }
	catches := map[runtimefake.Fault]string{
		runtimefake.ServesByHand:         "process: it does not serve when it is run by hand",
		runtimefake.CrashBeforeHandshake: "process: it runs until its handshake",
		runtimefake.NoHandshake:          "handshake: it comes within the deadline",
		runtimefake.GarbageFirst:         "handshake: it is the first line and leads to a gRPC server",
		runtimefake.DeadAddress:          "handshake: it is the first line and leads to a gRPC server",
		runtimefake.WrongProtocol:        "handshake: protocol version 1",
		runtimefake.WrongAPI:             "Info: API version 1",
		runtimefake.InfoIncomplete:       "Info: it answers with what it must have",
		runtimefake.InfoHangs:            "Info: it answers with what it must have",
		runtimefake.IgnoresShutdown:      "process: it ends when it is asked to",
		runtimefake.ArchitectureUnknown:  "TargetArchitecture: amd64 or arm64",
		runtimefake.PreflightFails:       "Preflight: succeeds",

		runtimefake.FindMissingFails:     "Find: a missing workspace is no error",
		runtimefake.StartMissingSucceeds: "Start: a missing workspace is NotFound",
		runtimefake.ErrorOtherCode:       "Start: a missing workspace is NotFound",
		runtimefake.ErrorWithoutDetail:   "errors: they carry a RuntimeError",
		runtimefake.DeleteMissingFails:   "Delete: a missing workspace succeeds",
		runtimefake.ExecMissingRuns:      "Exec: a missing workspace is NotFound",
		runtimefake.AnyImageRuns:         "RunImage: an image that cannot be found is an error",
		runtimefake.BooleanOneRefused:    "options: a boolean may be any that Go parses",
		runtimefake.BooleanYesAccepted:   "options: a boolean that is none is refused",
		runtimefake.NumberUnchecked:      "options: a number that is none is refused",
		runtimefake.DurationUnchecked:    "options: a duration that is none is refused",
		runtimefake.RunNothing:           "RunImage: makes a machine",
		runtimefake.RunStopped:           "Find: the machine is running after RunImage",
		runtimefake.FindStatusWrong:      "Find: the machine is running after RunImage",
		runtimefake.FindTimeWrong:        "Find: created_at is a time of RFC 3339",
		runtimefake.RunTwice:             "RunImage: an existing workspace is AlreadyExists, and is kept",
		runtimefake.RunAgainRemoves:      "RunImage: an existing workspace is AlreadyExists, and is kept",
		runtimefake.StartRunningFails:    "Start: a running machine succeeds",
		runtimefake.StopDoesNothing:      "Stop: the machine is stopped",
		runtimefake.StopStoppedFails:     "Stop: a stopped machine succeeds",
		runtimefake.ExecBoots:            "Exec: a stopped machine is refused",
		runtimefake.LogsMissing:          "Logs: as Info announces them",
		runtimefake.LogsNeverEnd:         "Logs: as Info announces them",
		runtimefake.StartDoesNothing:     "Start: a stopped machine is running",
		runtimefake.ExecLostAtRestart:    "Exec: a machine that was started again",
		runtimefake.DeleteDoesNothing:    "Delete: the machine is gone",

		runtimefake.ExecNoExit:        "Exec: exactly one exit, and last",
		runtimefake.ExecCrashes:       "Exec: exactly one exit, and last",
		runtimefake.ExecCodeLost:      "Exec: exit codes",
		runtimefake.ExecSignalLost:    "Exec: a signal is no success",
		runtimefake.ExecByteLost:      "Exec: bytes come back unchanged",
		runtimefake.ExecJoinsArgv:     "Exec: arguments arrive as they are",
		runtimefake.ExecEnvLost:       "Exec: environment and working folder",
		runtimefake.ExecMergesStderr:  "Exec: standard error is apart",
		runtimefake.ExecTakesTurns:    "Exec: much in both directions at once",
		runtimefake.ExecWaitsForInput: "Exec: a command may end before its input",
		runtimefake.CancelIgnored:     "Exec: a cancelled command ends",
		runtimefake.StdinFirstHangs:   invalid("stdin before the start"),
		runtimefake.CloseFirstHangs:   invalid("close_stdin before the start"),
		runtimefake.NoFrameHangs:      invalid("no frame at all"),
		runtimefake.StartTwice:        invalid("a second start"),
		runtimefake.NoArgvAccepted:    invalid("a start without a command"),
		runtimefake.TTYAccepted:       "Exec: a terminal is refused",
		runtimefake.EmptyFrame:        invalid("stdin without bytes"),
		runtimefake.LargeFrame:        invalid("stdin of 32769 bytes"),
		runtimefake.StdinAfterClose:   invalid("stdin after close_stdin"),
		runtimefake.CloseTwice:        invalid("a second close_stdin"),
		runtimefake.EndWithoutClose:   invalid("the end without close_stdin"),
		runtimefake.FrameWithoutValue: invalid("a frame without payload"),
		runtimefake.SmallFrameRefused: "Exec: stdin of 1 and of 32768 bytes is fine",
	}
	for _, check := range conformance.Names() {
		if !slices.ContainsFunc(runtimefake.Faults(), func(f runtimefake.Fault) bool { return catches[f] == check[0] }) {
			t.Errorf("no fault shows that %q can fail", check[0])
		}
	}
	for _, fault := range runtimefake.Faults() {
		want, known := catches[fault]
		if !known && fault != runtimefake.OutlivesHost {
			t.Errorf("no check is named for the fault %s", fault)
		}
		if !known {
			continue
		}
		t.Run(string(fault), func(t *testing.T) {
			t.Parallel()
			o := fake(t, fault)
			o.Answer, o.Duplex = 6*time.Second, 2<<20
			switch fault {
			case runtimefake.NoHandshake, runtimefake.InfoHangs:
				o.Runtime.StartDeadline = 2 * time.Second
			case runtimefake.ExecTakesTurns:
				o.Deadline = 10 * time.Second
			}
			failed, _ := run(t, o)
			if !slices.Equal(failed, []string{want}) {
				t.Errorf("failed: %q, want %q alone", failed, want)
			}
		})
	}
}

func TestARunThatIsEndedTellsNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	results, err := conformance.Run(ctx, fake(t, ""), func(r conformance.Result) {
		if strings.HasPrefix(r.Name, "RunImage: makes") {
			cancel()
		}
	})
	if err != nil {
		t.Errorf("the cleaning up: %v", err)
	}
	for _, r := range results {
		if r.Verdict == conformance.Fail {
			t.Errorf("%s failed: %s", r.Name, r.Seen)
		}
	}
	if last := results[len(results)-1]; last.Verdict == conformance.Pass {
		t.Errorf("%s passed", last.Name)
	}
}
