// Consumer shows that another module can use the parts of Parity.
package main

import (
	"context"
)

type Consumer struct{}

// Run msb's own check of the machine where KVM works
func (c *Consumer) Doctor(ctx context.Context) (string, error) {
	parity := dag.Parity()
	return parity.Step(parity.Microsandbox(), []string{"msb", "doctor"}).Stdout(ctx)
}
