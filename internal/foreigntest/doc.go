// Package foreigntest runs Parity's scenarios with a workspace CLI that speaks another dialect than
// the contract, and that wants what real CLIs want, so that no assumption of one CLI comes back.
// The CLI is in the folder foreign, its adapter in testdata/foreign.yaml.
package foreigntest
