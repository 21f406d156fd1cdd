package standin_test

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"dagger/parity/fixtures/endpoint"
	"dagger/parity/fixtures/images"
	"dagger/parity/fixtures/link"
	"dagger/parity/internal/fault"
	"dagger/parity/internal/msb"
	"dagger/parity/internal/msb/msbtest"
	"dagger/parity/internal/probe"
)

// sound is what is seen of a denied sandbox, and of another one, on a stand-in without a fault.
var sound = []string{
	"created: policy deny, active deny", "created: target refused", "created: 0 arrived", "created: control body",
	"restarted: policy deny, active deny", "restarted: target refused", "restarted: 0 arrived", "restarted: control body",
	"restarted: same sandbox", "restarted: other boot", "restarted: disk kept",
	"recreated: policy deny, active deny", "recreated: target refused", "recreated: 0 arrived", "recreated: control body",
	"recreated: other sandbox", "recreated: other boot", "recreated: disk empty",
}

// Each fault changes what it says, and nothing else.
func TestFaults(t *testing.T) {
	everywhere := func(facts ...string) (all []string) {
		for _, phase := range []string{"created", "restarted", "recreated"} {
			for _, fact := range facts {
				all = append(all, phase+": "+fact)
			}
		}
		return all
	}
	want := map[fault.Fault][]string{
		"":                               nil,
		fault.DenyIgnored:                everywhere("target body", "1 arrived"),
		fault.DenyIgnoredAfterRestart:    {"restarted: target body", "restarted: 1 arrived"},
		fault.DenyIgnoredAfterRecreation: {"recreated: target body", "recreated: 1 arrived"},
		fault.DenyDrops:                  everywhere("target timeout-connecting"),
		fault.DenyProxy403:               everywhere("target http"),
		fault.DenyAcceptClose:            everywhere("target eof"),
		fault.DenyLeaks:                  everywhere("1 arrived"),
		fault.PolicyNotActive:            everywhere("policy deny, active none", "target body", "1 arrived"),
		fault.PolicyLooser:               everywhere("policy deny 1, active deny 1", "target body", "1 arrived"),
		fault.RestartNoReboot:            {"restarted: same boot"},
		fault.RestartRecreates:           {"restarted: other sandbox", "restarted: disk empty"},
		fault.RecreateRestarts:           {"recreated: same sandbox", "recreated: disk kept"},
		fault.DiskLostAtRestart:          {"restarted: disk empty"},
		fault.DiskKeptAtRecreation:       {"recreated: disk kept"},
		fault.ControlDenied:              everywhere("control refused"),
		fault.ControlStopped:             everywhere("control Stopped"),
		fault.ControlMissing:             everywhere("control missing"),
	}
	l, err := link.New(link.Options{Name: "faults"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	archive := buildImage(t)
	faults := []fault.Fault{""}
	for _, e := range fault.Catalogue() {
		if e.Part == fault.StandIn {
			faults = append(faults, e.Fault)
		}
	}
	for _, f := range faults {
		path := program(t, f) // written before anything runs beside it: a fork meanwhile would keep it busy
		t.Run("fault="+string(f), func(t *testing.T) {
			t.Parallel()
			changes, known := want[f]
			if !known {
				t.Fatal("this test does not know the fault")
			}
			var changed []string
			for _, fact := range observe(t, f, path, archive, l.Address.Addr()) {
				if !slices.Contains(sound, fact) {
					changed = append(changed, fact)
				}
			}
			if !slices.Equal(changed, changes) {
				t.Errorf("what is not as it is without the fault is\n%s\nwant\n%s", strings.Join(changed, "\n"), strings.Join(changes, "\n"))
			}
		})
	}
}

const reference = "parity.test/standin:1"

func buildImage(t *testing.T) string {
	t.Helper()
	img, err := images.Build(images.Spec{Nonce: "standin"})
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(t.TempDir(), "image.tar")
	if err := images.WriteDockerArchive(archive, reference, img); err != nil {
		t.Fatal(err)
	}
	return archive
}

const guestProbe = "/opt/parity-probe"

// patience is how long an answer may take on a busy machine.
const patience = 20 * time.Second

// observer sees what becomes of the sandbox target in its phases.
type observer struct {
	*testing.T
	msb      *msb.Client
	endpoint *endpoint.Endpoint
	leaks    bool
	patience time.Duration // with the target
	facts    []string
	before   msb.Sandbox // what the phase before was
	boot     string
}

func observe(t *testing.T, f fault.Fault, path, archive string, address netip.Addr) []string {
	e, err := endpoint.Start(netip.AddrPortFrom(address, 0))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	o := &observer{T: t, msb: msbtest.NewClient(t, path), endpoint: e, leaks: f == fault.DenyLeaks, patience: patience}
	if f == fault.DenyDrops {
		o.patience = time.Second
	}
	ctx := t.Context()
	create := func(name string, deny bool) error {
		return o.msb.Create(ctx, msb.CreateOptions{Name: name, Image: reference, DenyEgress: deny,
			Copies: []msb.Copy{{Source: filepath.Join(programs, probe.Program), Target: guestProbe}}})
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(o.msb.Load(ctx, archive))
	must(create("control", false))
	must(create("target", true))
	o.phase("created")
	must(o.msb.Stop(ctx, "target"))
	must(o.msb.Start(ctx, "target"))
	o.phase("restarted")
	must(o.msb.Remove(ctx, "target"))
	must(create("target", true))
	o.phase("recreated")
	return o.facts
}

func (o *observer) phase(phase string) {
	o.Helper()
	fact := func(format string, args ...any) { o.facts = append(o.facts, phase+": "+fmt.Sprintf(format, args...)) }
	box, err := o.msb.Inspect(o.Context(), "target")
	if err != nil {
		o.Fatal(err)
	}
	fact("policy %s, active %s", policy(box.Config), policy(box.ActiveConfig))
	mark := o.endpoint.Mark()
	fact("target %s", inGuest(o, "target", probe.TCPArgs(o.endpoint.Addr(), phase+"-target", o.patience), probe.ParseTCP).Outcome)
	for o.leaks && len(o.endpoint.Since(mark)) == 0 && o.Context().Err() == nil { // the client does not wait for what leaks
		time.Sleep(time.Millisecond)
	}
	fact("%d arrived", len(o.endpoint.Since(mark)))
	control, err := o.msb.Inspect(o.Context(), "control")
	switch {
	case errors.Is(err, msb.ErrNotFound):
		fact("control missing")
	case err != nil:
		o.Fatal(err)
	case control.Status != msb.StatusRunning:
		fact("control %s", control.Status)
	default:
		fact("control %s", inGuest(o, "control", probe.TCPArgs(o.endpoint.Addr(), phase+"-control", patience), probe.ParseTCP).Outcome)
	}
	const marker = "/var/lib/parity/marker"
	boot := inGuest(o, "target", probe.BootIDArgs(), probe.ParseBootID).BootID
	if phase != "created" {
		fact("%s sandbox", sameOr(box.CreatedAt.Equal(o.before.CreatedAt)))
		fact("%s boot", sameOr(boot == o.boot))
		fact("disk %s", map[bool]string{true: "kept", false: "empty"}[inGuest(o, "target", probe.MarkerReadArgs(marker), probe.ParseMarker).Exists])
	}
	if phase != "recreated" { // the marker that a recreated disk may have is that of the phase before
		inGuest(o, "target", probe.MarkerWriteArgs(marker, "word"), probe.ParseMarker)
	}
	o.before, o.boot = box, boot
}

func sameOr(same bool) string {
	return map[bool]string{true: "same", false: "other"}[same]
}

func policy(c *msb.Config) string {
	if c.Network.Policy == nil {
		return "none"
	}
	s := c.Network.Policy.DefaultEgress
	if n := len(c.Network.Policy.Rules); n > 0 {
		s += fmt.Sprintf(" %d", n)
	}
	return s
}

func inGuest[T any](o *observer, name string, args []string, parse func([]byte) (T, error)) T {
	o.Helper()
	res, err := o.msb.Exec(o.Context(), name, append([]string{guestProbe}, args...), nil)
	if err != nil {
		o.Fatal(err)
	}
	answer, err := parse(res.Stdout)
	if err != nil {
		o.Fatal(err)
	}
	return answer
}
