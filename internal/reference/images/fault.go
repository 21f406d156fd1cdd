package images

import (
	"context"

	"dagger/parity/internal/fault"
)

// stale gives the image that was brought before, if a fault asks for it: nobody is asked then what the reference stands for now.
func (d delivery) stale(ctx context.Context) (Image, bool) {
	if !fault.On(fault.StaleTag) || d.record.Digest == "" {
		return Image{}, false
	}
	stored, err := d.stored(ctx)
	return Image{User: stored.Config.User}, err == nil && stored.Digest == d.record.Digest
}
