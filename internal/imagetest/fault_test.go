package imagetest

import (
	"strings"
	"testing"

	"dagger/parity/internal/fault"
)

// Each fault of the reference CLI that is about images does what it says: so do those in the CLI with the built-in provider, and one that is in
// the driver with the external one.
func TestFaults(t *testing.T) {
	w := newWorld(t)
	w.put(inRegistry, "first")
	w.put(inDocker, "first")
	// remade is what a recreated workspace of a repository has, once the tag has moved.
	remade := func(c *cli, repository string) string {
		c.put(repository, "second")
		defer c.put(repository, "first")
		c.up(true)
		return c.nonce()
	}
	built := "cat /app.txt /feature 2>/dev/null; echo $FROM_IMAGE $FROM_DOCKERFILE $FROM_FEATURE; echo $PATH"
	const path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
	for _, row := range []struct {
		provider string
		fault    fault.Fault
		image    string // the repository; empty: the Dockerfile with the Feature
		seen     func(c *cli) string
		want     string
	}{
		{"builtin", fault.ImageThroughDocker, inRegistry, func(c *cli) string {
			refs, err := c.docker.References(c.Context(), c.registry.Host()+"/"+inRegistry)
			c.must(err)
			c.must(c.docker.Remove(c.Context(), c.ref(inRegistry)))
			return strings.Join(refs[:1], " ") + " " + c.nonce()
		}, w.ref(inRegistry) + " first"},
		{"builtin", fault.RegistryNeverRead, inRegistry, (*cli).nonce, "made up"},
		{"builtin", fault.WrongImage, inRegistry, (*cli).nonce, "made up"},
		{"builtin", fault.WrongImage, inDocker, (*cli).nonce, "made up"},
		{"builtin", fault.StaleTag, inRegistry, func(c *cli) string { return remade(c, inRegistry) }, "first"},
		{"external", fault.StaleTag, inDocker, func(c *cli) string { return remade(c, inDocker) }, "first"},
		{"builtin", fault.UserIgnored, inDocker, func(c *cli) string { return c.sh("id -un") }, "root\n"},
		{"builtin", fault.SSHEnvDropped, inDocker, func(c *cli) string { return c.sh("echo $FROM_IMAGE$FROM_DEVCONTAINER; echo $PATH") }, "\n" + path},
		{"builtin", fault.DockerfileIgnored, "", func(c *cli) string { return c.sh(built) }, "given dev /home/dev dev\nfirst yes\n/opt/parity:" + path},
		{"builtin", fault.FeatureDropped, "", func(c *cli) string { return c.sh(built) }, "firstfirst yes\n" + path},
		{"builtin", fault.FeatureEnvDropped, "", func(c *cli) string { return c.sh(built) }, "firstgiven dev /home/dev dev\nfirst yes\n" + path},
	} {
		t.Run(row.provider+" "+string(row.fault), func(t *testing.T) {
			w := w.of(t)
			if row.image == "" {
				w.putFeature()
			} else {
				w.devcontainer(`{"image": "` + w.ref(row.image) + `", "containerEnv": {"FROM_DEVCONTAINER": "too"}}`)
			}
			c := w.cli(row.provider, row.fault)
			c.up(false)
			if got := row.seen(c); got != row.want {
				t.Errorf("%s, %s: got %q, want %q", row.fault, row.image, got, row.want)
			}
		})
	}

	t.Run("what is seen outside of the guest", func(t *testing.T) {
		w := w.of(t)
		w.devcontainer(`{"image": "` + w.ref(inDocker) + `"}`)
		w.cli("builtin", fault.ImageThroughRegistry).up(false)
		if w.registry.Reads(inDocker).Asked == 0 {
			t.Errorf("%s: the registry was not asked", fault.ImageThroughRegistry)
		}
	})
}
