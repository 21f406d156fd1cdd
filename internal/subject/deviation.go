package subject

import (
	"slices"
)

// reads are, by the name of a check of the contract, the results of the CLI by which it is judged:
// VERB for all of a verb's, or VERB/FIELD as adapter.Deviation has them.
var reads = map[string][]string{
	checkProvider: {"provider-add"},
	checkArray:    {"list"},
	"workspace status: a missing workspace exits 75":                        {"status/missing", "list"},
	"workspace up: error JSON and exit 1 for an image that cannot be found": {"up/outcome", "up/message", "up/failed", "up/output", "up/shared"},
	checkUp:      {"up/outcome", "up/container", "up/user", "up/folder", "up/output", "up/shared"},
	checkRunning: {"status/id", "status/context", "status/provider", "status/state", "status/output", "status/shared"},
	checkListed:  {"list"},
	checkMachine: {"list"},
	"homes are apart: another home does not list it":       {"list", "status/missing"},
	"workspace ssh: exit code 23 passes through --command": {"ssh/exit"},
	checkStdio:  {"up/user"},
	checkStop:   {"status/state", "status/output", "status/shared"},
	checkStart:  {"status/state", "status/output", "status/shared", "list"},
	checkDelete: {"list", "status/missing", "delete/missing"},
	"workspace delete: again with --ignore-not-found succeeds":     {"delete/missing"},
	"provider delete: succeeds, and again with --ignore-not-found": {"provider-delete"},
}

// Deviations returns what the CLI's adapter reads otherwise than the contract has it, of the
// results by which a check of the contract is judged.
func (c CLI) Deviations(check string) (list []string) {
	for _, d := range c.adapter().Deviations() {
		if slices.Contains(reads[check], string(d.Verb)) || slices.Contains(reads[check], string(d.Verb)+"/"+d.Field) {
			list = append(list, d.Text)
		}
	}
	return list
}
