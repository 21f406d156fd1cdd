package egress

import (
	"context"
	"fmt"

	"dagger/parity/internal/cases"
	"dagger/parity/internal/cases/workspace"
	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/probe"
)

// markerPath is on the image's own disk: not /tmp, not the workspace folder.
const markerPath = "/var/lib/parity/marker"

func (s *scenario) disk(phase string, g *workspace.Guest) cases.Finding {
	args := probe.MarkerReadArgs(markerPath)
	if phase == catalogue.Created {
		args = probe.MarkerWriteArgs(markerPath, s.marker)
	}
	var m probe.Marker
	err := s.Bounded(workspace.GuestDeadline, func(ctx context.Context) (err error) {
		m, err = workspace.RunProbe(ctx, g, args, probe.ParseMarker)
		return err
	})
	if err != nil {
		return cases.Unclear("", err.Error(), workspace.NextGuest)
	}
	if !m.RootDevice || m.FSType == "virtiofs" {
		return cases.Unclear("a marker on the image's own disk", fmt.Sprintf("%s is on %s (%s)", markerPath, m.MountPoint, m.FSType),
			"a folder of the host or a mount survives a recreation: it says nothing of the image's disk")
	}
	seen := "no marker"
	if m.Exists {
		seen = fmt.Sprintf("marker %q", m.Value)
	}
	seen = fmt.Sprintf("%s on %s (%s)", seen, m.MountPoint, m.FSType)
	kept := m.Exists && m.Value == s.marker
	s.Observe(phase, "disk", "%s", map[bool]string{true: "has the marker", false: "has not the marker"}[kept])
	switch {
	case phase == catalogue.Created && !kept:
		return cases.Unclear("", seen, "the guest lost what was written and synced a moment ago")
	case phase == catalogue.Restarted && !kept:
		return cases.Broken("", seen, "a restart must keep the workspace's disk")
	case phase == catalogue.Recreated && m.Exists:
		return cases.Broken("", seen, "a recreation must begin with the image's own disk")
	}
	return cases.Passed(seen)
}
