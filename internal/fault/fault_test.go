package fault

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// PARITY_FAULT is read once, so each test of it is a process of its own.
func TestMain(m *testing.M) {
	if os.Getenv("PARITY_TEST_FAULTS") != "" {
		for _, e := range Catalogue() {
			if On(e.Fault) {
				os.Stdout.WriteString(string(e.Fault) + "\n")
			}
		}
		if err := Check(); err != nil {
			os.Stdout.WriteString(err.Error())
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func asking(t *testing.T, name string) (string, int) {
	t.Helper()
	c := exec.Command("/proc/self/exe")
	c.Env = []string{"PARITY_TEST_FAULTS=1", Env + "=" + name, "GORACE=atexit_sleep_ms=0"}
	out, err := c.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return string(out), exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	return string(out), 0
}

func TestOnlyTheFaultAskedForIsOn(t *testing.T) {
	if out, code := asking(t, ""); out != "" || code != 0 {
		t.Errorf("without a fault: code %d, %q", code, out)
	}
	for _, e := range Catalogue() {
		if out, code := asking(t, string(e.Fault)); out != string(e.Fault)+"\n" || code != 0 {
			t.Errorf("%s: code %d, %q", e.Fault, code, out)
		}
	}
}

func TestUnknownFaultIsAnErrorThatListsThem(t *testing.T) {
	out, code := asking(t, "deny-ignord")
	if code != 1 || !strings.Contains(out, "deny-ignord") || !strings.Contains(out, string(DenyIgnored)) || !strings.Contains(out, string(ControlMissing)) {
		t.Errorf("code %d, %q", code, out)
	}
}

func TestEachFaultIsDescribedOnce(t *testing.T) {
	seen := map[Fault]bool{}
	for _, e := range Catalogue() {
		if e.Fault == "" || e.Part == "" || seen[e.Fault] || !strings.HasSuffix(e.Sentence, ".") {
			t.Errorf("%+v, seen before: %v", e, seen[e.Fault])
		}
		seen[e.Fault] = true
	}
}
