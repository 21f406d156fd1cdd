// Consumer shows that another module can use the parts of Parity.
package main

import (
	"context"
)

type Consumer struct{}

// Run msb's own check of the machine in a lab
func (c *Consumer) Doctor(ctx context.Context) (string, error) {
	parity := dag.Parity()
	return parity.Step(parity.Microsandbox(), []string{"sh", "-c", "msb --version; msb doctor"}).CombinedOutput(ctx)
}

// Ask the registry and the artifact server for what they have, and for what they were asked
func (c *Consumer) Fixtures(ctx context.Context) (string, error) {
	program := dag.Directory().WithNewFile("program", "a program").File("program")
	const script = `curl -fsS registry:5000/v2/; curl -fsS artifacts:8001/agent; curl -fsS artifacts:8002/runtime
for at in registry:5000 artifacts:8001 artifacts:8002; do curl -fsS $at/parity/requests; done`
	return dag.Container().From("debian:bookworm-slim").
		WithExec([]string{"sh", "-c", "apt-get update -qq && apt-get install -qq -y --no-install-recommends curl"}).
		WithServiceBinding("registry", dag.Parity().Registry()).
		WithServiceBinding("artifacts", dag.Parity().Artifacts(program, program)).
		WithExec([]string{"sh", "-ec", script}).
		Stdout(ctx)
}
