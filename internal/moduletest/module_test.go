package moduletest

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"dagger/parity/internal/report"
)

// module is the module's program, built once: an engine starts it for each call of a function.
var module string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "moduletest-")
	if err != nil {
		panic(err)
	}
	module = filepath.Join(dir, "module")
	if out, err := exec.Command("go", "build", "-o", module, "dagger/parity").CombinedOutput(); err != nil {
		panic(string(out))
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// images are the defaults of the constructor, as an engine puts them into the module's object.
var fields = map[string]any{"Kvm": "Auto", "Debian": "debian:x", "Golang": "golang:y", "Platform": "linux/amd64"}

// with gives the fields with one more.
func with(name string, value any) map[string]any {
	out := map[string]any{name: value}
	for k, v := range fields {
		if k != name {
			out[k] = v
		}
	}
	return out
}

// step is what came of the privileged exec.
type step struct {
	exitCode int
	report   *report.Report
	stderr   string
	err      error // the engine's, about the exec
}

func (s step) answer(chain string) (any, error) {
	switch {
	case s.err != nil && strings.HasSuffix(chain, ".sync"):
		return nil, s.err
	case strings.HasSuffix(chain, ".exitCode"):
		return s.exitCode, nil
	case strings.HasSuffix(chain, ".stderr"):
		return s.stderr, nil
	case strings.HasSuffix(chain, `.file(path: "report.json").contents`):
		if s.report == nil {
			return nil, os.ErrNotExist
		}
		data, err := json.Marshal(s.report)
		return string(data), err
	}
	return nil, nil
}

// reportWith is a report of one case with one check.
func reportWith(v report.Verdict) *report.Report {
	r := report.Conclude(report.Report{
		Selected: []string{"egress/builtin/deny"},
		Cases: []report.Case{{ID: "egress/builtin/deny", Verdict: v, Checks: []report.Check{
			{Phase: "created", Name: "policy", Verdict: report.Pass}, {Phase: "created", Name: "deny", Verdict: v, Seen: "an answer came back"},
		}}},
	})
	return &r
}

// start runs the module's program as the engine does.
func (e *standInEngine) start(t *testing.T) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, module)
	cmd.Env = append(os.Environ(), e.variables()...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// run calls a function and gives what it gave back.
func run(t *testing.T, c call, s step) (*standInEngine, outcome) {
	t.Helper()
	e := startEngine(t, c, s.answer)
	out, err := e.start(t)
	if failed := e.result.err != ""; failed != (err != nil) || strings.Contains(out, "failed to return error") {
		t.Fatalf("the module's program: %v\n%s", err, out)
	}
	return e, e.result
}

func egress(parent map[string]any, args map[string]any) call {
	if args == nil {
		args = map[string]any{"provider": "Both", "only": "", "keepGoing": false}
	}
	return call{object: "Parity", function: "Egress", parent: parent, args: args}
}

// theStep gives the chain that ends with the step's exec.
func theStep(t *testing.T, e *standInEngine) string {
	t.Helper()
	for _, chain := range e.asked() {
		if i := strings.LastIndex(chain, ".withExec("); i >= 0 && strings.HasSuffix(chain, ")") && strings.Contains(chain[i:], `"parity" "egress"`) {
			return chain
		}
	}
	t.Fatalf("no chain ends with the step:\n%s", strings.Join(e.asked(), "\n"))
	return ""
}

const privilege = "insecureRootCapabilities: true"

func TestOnlyTheStepIsPrivilegedAndHasTheNonce(t *testing.T) {
	e, _ := run(t, egress(fields, nil), step{report: reportWith(report.Pass)})
	chain := theStep(t, e)
	before, exec, _ := cutLast(chain, ".withExec(")
	for _, want := range []string{privilege, `expect: "ANY"`, `"--provider" "both"`, `"--kvm" "auto"`} {
		if !strings.Contains(exec, want) {
			t.Errorf("the step's exec is (%s; want %s in it", exec, want)
		}
	}
	if strings.Contains(before, privilege) {
		t.Errorf("an exec before the step is privileged: %s", before)
	}
	if !nonce.MatchString(before) || strings.Count(before, "PARITY_NONCE") != 1 {
		t.Errorf("the nonce is not right before the step, and only there: %s", before)
	}
}

// Runs on one engine wait for one another. A step of another module's does not: it may be one that a service of its own runs, which would be
// waited for for ever.
func TestOnlyARunWaitsForItsTurn(t *testing.T) {
	const turn = `path: "/run/parity-turn", sharing: "LOCKED")`
	e, _ := run(t, egress(fields, nil), step{report: reportWith(report.Pass)})
	chain := theStep(t, e)
	if !strings.Contains(chain, turn) {
		t.Errorf("a run does not wait for its turn:\n%s", chain)
	}
	e = startEngine(t, call{object: "Parity", function: "Step", parent: fields, args: map[string]any{"container": "given", "args": []string{"true"}}}, step{}.answer)
	e.give("given", `container.from(address: "mine")`)
	if out, err := e.start(t); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if strings.Contains(e.last(), "parity-turn") {
		t.Errorf("a step of another module's waits:\n%s", e.last())
	}
}

var nonce = regexp.MustCompile(`\.withEnvVariable\(name: "PARITY_NONCE", value: "([^"]+)"\)$`)

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// All that comes before the step is the same in each call, so that the engine has it in its cache; the nonce is another one.
func TestTwoCallsDifferInTheNonceOnly(t *testing.T) {
	var before, nonces []string
	for range 2 {
		e, _ := run(t, egress(fields, nil), step{report: reportWith(report.Pass)})
		b, _, _ := cutLast(theStep(t, e), ".withExec(")
		found := nonce.FindStringSubmatch(b)
		if found == nil {
			t.Fatalf("no nonce: %s", b)
		}
		before, nonces = append(before, strings.TrimSuffix(b, found[0])), append(nonces, found[1])
	}
	if before[0] != before[1] || nonces[0] == nonces[1] {
		t.Errorf("two calls:\n%s, nonce %s\n%s, nonce %s", before[0], nonces[0], before[1], nonces[1])
	}
}

func TestTheVerdictIsTheCallsOutcome(t *testing.T) {
	for _, test := range []struct {
		verdict    report.Verdict
		wantCode   int
		wantInText []string
	}{
		{report.Pass, 0, nil},
		{report.Fail, 1, []string{"FAIL  egress/builtin/deny", "created deny", "an answer came back", "broke its promise"}},
		{report.Inconclusive, 3, []string{"INCONCLUSIVE  egress/builtin/deny", "created deny"}},
	} {
		s := step{exitCode: test.wantCode, report: reportWith(test.verdict)}
		_, out := run(t, egress(fields, nil), s)
		if out.exitCode != test.wantCode || (out.err == "") != (test.wantCode == 0) {
			t.Errorf("%s: exit code %d, error %q", test.verdict, out.exitCode, out.err)
		}
		for _, want := range test.wantInText {
			if !strings.Contains(out.err, want) {
				t.Errorf("%s: the error is %q; want %q in it", test.verdict, out.err, want)
			}
		}
		// With keepGoing there is a report, whatever the verdict; its assert gives the same error.
		_, out = run(t, egress(fields, map[string]any{"provider": "Builtin", "only": "", "keepGoing": true}), s)
		object, ok := out.value.(map[string]any)
		if !ok || out.err != "" || object["Verdict"] != string(test.verdict) {
			t.Fatalf("%s, keep going: %v, error %q", test.verdict, out.value, out.err)
		}
		_, out = run(t, call{object: "Report", function: "Assert", parent: object}, step{})
		if out.exitCode != test.wantCode || (out.err == "") != (test.wantCode == 0) || test.wantCode != 0 && !strings.Contains(out.err, "created deny") {
			t.Errorf("%s: assert has exit code %d, error %q", test.verdict, out.exitCode, out.err)
		}
	}
}

// A step that left no report says why in what it printed.
func TestAStepWithoutAReportIsExplained(t *testing.T) {
	for _, test := range []struct {
		step     step
		wantCode int
		want     string
	}{
		{step{exitCode: 2, stderr: "setup\nparity: error: bad option --subject: it is for another machine"}, 2, "it is for another machine"},
		{step{exitCode: 3, stderr: "parity: error: no KVM"}, 3, "no KVM"},
		{step{exitCode: 137, stderr: "the last words"}, 1, "the last words"},
	} {
		_, out := run(t, egress(fields, nil), test.step)
		if out.exitCode != test.wantCode || !strings.Contains(out.err, test.want) {
			t.Errorf("%+v: exit code %d, error %q", test.step, out.exitCode, out.err)
		}
	}
}

func TestWhatIsGivenReachesTheStep(t *testing.T) {
	file := `host.file(path: "/subject")`
	e := func(parent map[string]any) string {
		e := startEngine(t, egress(parent, nil), step{report: reportWith(report.Pass)}.answer)
		e.give("given", file)
		if out, err := e.start(t); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return theStep(t, e)
	}
	for _, test := range []struct {
		parent map[string]any
		want   []string
	}{
		{with("Subject", "given"), []string{"source: {" + file + "}", "permissions: 493", `"--subject" "/opt/subject/subject"`}},
		{with("ExternalProvider", "given"), []string{"source: {" + file + "}", `"--external-provider" "/opt/provider/provider.yaml"`}},
		{with("ExternalRuntime", "given"), []string{"source: {" + file + "}", "permissions: 493", `"--external-runtime" "/opt/provider/runtime"`}},
		{with("ExternalBinary", "DRIVER"), []string{`"--external-binary" "DRIVER"`}},
		{with("Adapter", "given"), []string{"source: {" + file + "}", `"--adapter" "/opt/subject/adapter.yaml"`}},
		{with("BuiltinSource", "vm"), []string{`"--builtin-source" "vm"`}},
		{with("Patience", 2.5), []string{`"--patience" "2.5"`}},
		{with("Kvm", "Native"), []string{`"--kvm" "native"`}},
		{with("Debian", "registry/debian@sha256:0"), []string{`from(address: "registry/debian@sha256:0")`}},
		{with("Golang", "registry/golang@sha256:0"), []string{`from(address: "registry/golang@sha256:0")`}},
	} {
		chain := e(test.parent)
		for _, want := range test.want {
			if !strings.Contains(chain, want) {
				t.Errorf("%v: want %s in\n%s", test.parent, want, chain)
			}
		}
	}
	if chain := e(with("Agent", "given")); strings.Contains(chain, "--agent") {
		t.Errorf("egress has no agent, and is given one:\n%s", chain)
	}
	chain := e(with("Microsandboxed", "given"))
	if strings.Contains(chain, `"npm"`) || !strings.Contains(chain, `"--microsandbox" "/opt/microsandbox"`) {
		t.Errorf("a MicroSandbox that is given is not used alone:\n%s", chain)
	}
}

// Each scenario's function runs its own scenario, and what it selects reaches the step.
func TestEachScenarioIsRunByItsFunction(t *testing.T) {
	for function, scenario := range map[string]string{
		"Egress": "egress", "ImageParity": "image-parity", "RemoteAgent": "remote-agent", "Contract": "contract", "All": "all",
	} {
		c := call{object: "Parity", function: function, parent: fields, args: map[string]any{"provider": "External", "only": "*/*/x", "keepGoing": false}}
		e, _ := run(t, c, step{report: reportWith(report.Pass)})
		want := `.withExec(args: ["parity" "` + scenario + `" "--provider" "external"`
		if !slices.ContainsFunc(e.asked(), func(chain string) bool {
			// A remote agent's one case leaves nothing to choose.
			return strings.Contains(chain, want) && strings.Contains(chain, `"--only" "*/*/x"`) != (function == "RemoteAgent")
		}) {
			t.Errorf("%s: no chain has %s and the pattern:\n%s", function, want, strings.Join(e.asked(), "\n"))
		}
	}
}

// A service's password is in no argument and in no variable: it is a secret that is mounted.
func TestThePasswordOfARegistryIsMountedAsASecret(t *testing.T) {
	e := startEngine(t, call{object: "Parity", function: "Registry", parent: fields, args: map[string]any{"user": "somebody", "password": "given"}}, step{}.answer)
	secret := `setSecret(name: "password", plaintext: "hush")`
	e.give("given", secret)
	if out, err := e.start(t); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	chain := e.last()
	for _, want := range []string{
		`.withMountedSecret(path: "/run/secrets/password", source: {` + secret + `})`, `"--password-file" "/run/secrets/password"`, `"--user" "somebody"`,
		".withExposedPort(port: 5000)", ".asService(",
	} {
		if !strings.Contains(chain, want) {
			t.Errorf("want %s in\n%s", want, chain)
		}
	}
	if strings.Count(chain, "hush") != 1 {
		t.Errorf("the password is elsewhere too:\n%s", chain)
	}
	_, out := run(t, call{object: "Parity", function: "Registry", parent: fields, args: map[string]any{"user": "somebody", "password": nil}}, step{})
	if !strings.Contains(out.err, "--user and --password go together") {
		t.Errorf("a user without a password: %q", out.err)
	}
}

// The machine's host key is a secret that is mounted, and who may log in is in a file.
func TestTheHostKeyOfARemoteMachineIsMountedAsASecret(t *testing.T) {
	e := startEngine(t, call{
		object: "Parity", function: "RemoteMachine", parent: fields, args: map[string]any{"authorizedKeys": "keys", "hostKey": "given"},
	}, step{}.answer)
	secret, file := `setSecret(name: "host", plaintext: "hush")`, `host.file(path: "keys.pub")`
	e.give("given", secret)
	e.give("keys", file)
	if out, err := e.start(t); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	chain := e.last()
	for _, want := range []string{
		`.withMountedSecret(path: "/run/secrets/host_key", source: {` + secret + `})`, `"-h" "/run/secrets/host_key"`,
		`.withFile(path: "/root/.ssh/authorized_keys", permissions: 384, source: {` + file + `}`, ".withExposedPort(port: 22)", "insecureRootCapabilities: true",
	} {
		if !strings.Contains(chain, want) {
			t.Errorf("want %s in\n%s", want, chain)
		}
	}
}

// A remote machine of the user's own reaches the step: its key as a secret that is mounted, and all three options or none.
func TestARemoteMachineOfTheUsersOwnIsVisited(t *testing.T) {
	args := map[string]any{"remote": "ssh://me@build.example", "remoteKey": "given", "remoteKnownHosts": "known"}
	e := startEngine(t, call{object: "Parity", function: "RemoteAgent", parent: fields, args: args}, step{report: reportWith(report.Pass)}.answer)
	secret, file := `setSecret(name: "key", plaintext: "hush")`, `host.file(path: "known_hosts")`
	e.give("given", secret)
	e.give("known", file)
	if out, err := e.start(t); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	chain := e.last()
	for _, want := range []string{
		`.withMountedSecret(path: "/run/secrets/remote_key", source: {` + secret + `})`, `.withFile(path: "/opt/remote/known_hosts", source: {` + file + `})`,
		`"--remote" "ssh://me@build.example" "--remote-key" "/run/secrets/remote_key" "--remote-known-hosts" "/opt/remote/known_hosts"`,
	} {
		if !strings.Contains(chain, want) {
			t.Errorf("want %s in\n%s", want, chain)
		}
	}
	if strings.Count(chain, "hush") != 1 {
		t.Errorf("the key is elsewhere too:\n%s", chain)
	}
	_, out := run(t, call{object: "Parity", function: "RemoteAgent", parent: fields, args: map[string]any{"remote": "ssh://me@build.example"}}, step{})
	if !strings.Contains(out.err, "--remote, --remote-key and --remote-known-hosts go together") {
		t.Errorf("a machine without a key: %q", out.err)
	}
}

func TestTheStepOfAGivenContainerIsPrivileged(t *testing.T) {
	e := startEngine(t, call{object: "Parity", function: "Step", parent: fields, args: map[string]any{"container": "given", "args": []string{"msb", "doctor"}}}, step{}.answer)
	given := `container.from(address: "mine")`
	e.give("given", given)
	if out, err := e.start(t); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	chain := e.last()
	_, exec, _ := cutLast(chain, ".withExec(")
	if !strings.HasPrefix(chain, given+".") || !strings.Contains(exec, privilege) || !strings.Contains(exec, `"--" "msb" "doctor"`) {
		t.Errorf("the step is %s", chain)
	}
}

// What the engine refuses is told with the way out, and as something that is missing rather than a broken promise.
func TestWhatTheEngineRefusesIsExplained(t *testing.T) {
	for text, want := range map[string]string{
		"security.insecure is not allowed": "insecureRootCapabilities",
		"failed to resolve image":          "--debian and --golang",
	} {
		_, out := run(t, egress(fields, nil), step{err: errors.New(text)})
		if out.exitCode != 3 || !strings.Contains(out.err, text) || !strings.Contains(out.err, want) {
			t.Errorf("%s: exit code %d, error %q", text, out.exitCode, out.err)
		}
	}
}
