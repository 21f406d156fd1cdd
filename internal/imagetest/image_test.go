package imagetest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"dagger/parity/internal/subject"
)

// TestImages runs what can share an engine and a registry.
func TestImages(t *testing.T) {
	shared := newWorld(t)
	for name, test := range map[string]func(*testing.T, *world){
		"anImageOfARegistry":             anImageOfARegistry,
		"anImageOfDocker":                anImageOfDocker,
		"aDockerfileWithAFeature":        aDockerfileWithAFeature,
		"aFeatureOverAnImageOfARegistry": aFeatureOverAnImageOfARegistry,
		"deleteWithoutDocker":            deleteWithoutDocker,
	} {
		t.Run(name, func(t *testing.T) { test(t, shared.of(t)) })
	}
}

const environment = "echo $FROM_IMAGE $FROM_DEVCONTAINER; id -un"

func anImageOfARegistry(t *testing.T, w *world) {
	both(t, func(t *testing.T, provider string) {
		w := w.of(t)
		w.put(inRegistry, "first")
		w.devcontainer(`{"image": "` + w.ref(inRegistry) + `", "containerEnv": {"FROM_DEVCONTAINER": "too"}}`)
		before := w.inDocker()
		c := w.cli(provider, "")
		up := c.up(false)
		if got := c.nonce(); got != "first" || up.RemoteUser != "dev" {
			t.Errorf("%+v with the nonce %q", up, got)
		}
		if got := c.sh(environment); got != "first too\ndev\n" {
			t.Errorf("its environment is %q", got)
		}
		if reads := w.registry.Reads(inRegistry); reads.Manifests == 0 || reads.Blobs == 0 {
			t.Errorf("the registry was read so: %+v", reads)
		}

		c.must(c.Stop(t.Context(), workspace))
		w.put(inRegistry, "second")
		reads := w.registry.Reads(inRegistry)
		c.up(false)
		if got := c.nonce(); got != "first" || w.registry.Reads(inRegistry) != reads {
			t.Errorf("a restart gives the nonce %q, after reads of %+v", got, w.registry.Reads(inRegistry))
		}
		c.up(true)
		if got := c.nonce(); got != "second" {
			t.Errorf("a recreation after the tag has moved gives the nonce %q", got)
		}
		if after := w.inDocker(); after != before {
			t.Errorf("Docker has\n%s\nand had\n%s", after, before)
		}
	})
}

func anImageOfDocker(t *testing.T, w *world) {
	both(t, func(t *testing.T, provider string) {
		w := w.of(t)
		w.put(inDocker, "first")
		w.devcontainer(`{"image": "` + w.ref(inDocker) + `", "containerEnv": {"FROM_DEVCONTAINER": "too"}}`)
		c := w.cli(provider, "")
		up := c.up(false)
		if got := c.nonce(); got != "first" || up.RemoteUser != "dev" {
			t.Errorf("%+v with the nonce %q", up, got)
		}
		if got := c.sh(environment); got != "first too\ndev\n" {
			t.Errorf("its environment is %q", got)
		}
		w.put(inDocker, "second")
		before := w.inDocker()
		c.up(true)
		if got := c.nonce(); got != "second" {
			t.Errorf("a recreation after the tag has moved gives the nonce %q", got)
		}
		if after := w.inDocker(); after != before {
			t.Errorf("Docker has\n%s\nand had\n%s", after, before)
		}
		if reads := w.registry.Reads(inDocker); reads.Asked > 0 {
			t.Errorf("the registry was asked: %+v", reads)
		}
	})
}

// putFeature writes a Feature with an option, and a Dockerfile, that leave their marks.
func (w *world) putFeature() {
	w.Helper()
	w.file(".devcontainer/devcontainer.json", `{
		"build": {"dockerfile": "Dockerfile", "context": "..", "args": {"WORD": "yes"}},
		"features": {"./features/parity": {"word": "given"}},
		"containerEnv": {"FROM_DEVCONTAINER": "too"},
	}`)
	w.file(".devcontainer/Dockerfile", `ARG BASE=`+w.ref(inDocker)+`
FROM $BASE
USER root
COPY app.txt /app.txt
ARG WORD
ENV FROM_DOCKERFILE=$WORD
USER dev
`)
	w.file("app.txt", "first")
	w.file(".devcontainer/features/parity/devcontainer-feature.json", `{"id": "parity", "version": "1.0.0", "name": "Parity",
		"options": {"word": {"type": "string", "default": "none"}},
		"containerEnv": {"FROM_FEATURE": "yes", "PATH": "/opt/parity:${PATH}"}}`)
	w.file(".devcontainer/features/parity/install.sh", `#!/bin/sh
echo "$WORD $_REMOTE_USER $_REMOTE_USER_HOME $_CONTAINER_USER" >/feature
`)
}

func aDockerfileWithAFeature(t *testing.T, w *world) {
	both(t, func(t *testing.T, provider string) {
		w := w.of(t)
		w.put(inDocker, "first")
		w.putFeature()
		before := w.inDocker()
		c := w.cli(provider, "")
		up := c.up(false)
		const marks = "cat /app.txt /feature; echo $FROM_IMAGE $FROM_DOCKERFILE $FROM_FEATURE $FROM_DEVCONTAINER; echo $PATH; id -un"
		const want = "firstgiven dev /home/dev dev\nfirst yes yes too\n/opt/parity:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\ndev\n"
		if got := c.sh(marks); got != want || up.RemoteUser != "dev" {
			t.Errorf("%+v, got %q, want %q", up, got, want)
		}

		// A build that fails leaves the workspace as it is, and nothing in Docker.
		running := w.inDocker()
		w.file(".devcontainer/features/parity/install.sh", "#!/bin/sh\necho oops; exit 3\n")
		_, err := c.tryUp(true)
		for _, part := range []string{"non-zero code: 3", "oops", "Feature ./features/parity (Parity): install.sh exited with code 3"} {
			if failed, ok := err.(*subject.UpError); !ok || !strings.Contains(failed.Message, part) {
				t.Errorf("no %q in %v", part, err)
			}
		}
		if got := c.sh(marks); got != want {
			t.Errorf("after a build that failed, got %q", got)
		}
		if after := w.inDocker(); after != running {
			t.Errorf("after a build that failed, Docker has\n%s\nand had\n%s", after, running)
		}

		// What changed is seen: the base, the context, the Feature, and devcontainer.json, which names the Dockerfile as older ones do.
		w.put(inDocker, "second")
		w.devcontainer(`{"dockerFile": "Dockerfile", "context": "..", "features": {"./features/parity": {}}}`)
		w.file("app.txt", "second")
		w.file(".devcontainer/features/parity/install.sh", "#!/bin/sh\necho new >/feature\n")
		c.up(true)
		if got := c.sh("cat /app.txt /feature; echo $FROM_IMAGE"); got != "secondnew\nsecond\n" {
			t.Errorf("after changes, got %q", got)
		}
		// What the first build made is gone: as much is there as after it.
		if now := w.inDocker(); strings.Count(now, "\n") != strings.Count(running, "\n")+1 { // the first base has no tag now
			t.Errorf("after a second build, Docker has\n%s\nand had\n%s", now, running)
		}
		c.must(c.Delete(t.Context(), workspace, true))
		w.must(w.docker.Remove(t.Context(), w.ref(inDocker)))
		w.put(inDocker, "first") // the tag is back at the one without
		if after := w.inDocker(); after != before {
			t.Errorf("in the end Docker has\n%s\nand had\n%s", after, before)
		}
		if reads := w.registry.Reads(inDocker); reads.Asked > 0 {
			t.Errorf("the registry was asked: %+v", reads)
		}
	})
}

// Features over an image of a registry: the tag is asked for again at each build.
func aFeatureOverAnImageOfARegistry(t *testing.T, w *world) {
	w.put(inRegistry, "first")
	w.putFeature()
	w.devcontainer(`{"image": "` + w.ref(inRegistry) + `", "features": {"./features/parity": {}}, "remoteUser": "root"}`)
	before := w.inDocker()
	c := w.cli("builtin", "")
	if up := c.up(false); up.RemoteUser != "root" {
		t.Errorf("%+v", up)
	}
	if got := c.sh("cat /feature; echo $FROM_IMAGE"); got != "none root /root dev\nfirst\n" {
		t.Errorf("got %q", got)
	}
	w.put(inRegistry, "second")
	c.up(true)
	if got := c.sh("echo $FROM_IMAGE"); got != "second\n" {
		t.Errorf("after the tag has moved, got %q", got)
	}

	// From a build to an image as it is.
	w.devcontainer(`{"image": "` + w.ref(inRegistry) + `"}`)
	c.up(true)
	if after := w.inDocker(); after != before || c.nonce() != "second" {
		t.Errorf("Docker has\n%s\nand had\n%s", after, before)
	}
}

// A build by hand of the same Dockerfile, and what it left, is not the CLI's.
func deleteWithoutDocker(t *testing.T, w *world) {
	w.put(inDocker, "first")
	w.putFeature()
	c := w.cli("builtin", "")
	c.up(false)
	c.Home.Extra = append(c.Home.Extra, "DOCKER_HOST=unix:///nowhere/docker.sock")
	c.must(c.Delete(t.Context(), workspace, true))
	if _, err := os.Stat(filepath.Join(c.Home.Dir, "devsy", "contexts", "default", "workspaces", workspace)); err == nil {
		t.Error("the workspace is still there")
	}
}
