package imagebuild_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"dagger/parity/fixtures/docker"
	"dagger/parity/fixtures/images"
	"dagger/parity/fixtures/registry"
	"dagger/parity/internal/lab"
	"dagger/parity/internal/lab/labtest"
	"dagger/parity/internal/reference/features"
	"dagger/parity/internal/reference/imagebuild"
)

// TestMain runs the tests in a lab: the Docker Engine makes links and cgroups.
func TestMain(m *testing.M) { labtest.Main(m) }

const base = "parity.test/base:test-run"

// bench is a builder with a real engine, and a folder with what is to be built.
type bench struct {
	*testing.T
	*imagebuild.Builder
	engine *docker.Engine
	said   bytes.Buffer
	dir    string
}

// newEngine starts an engine.
func newEngine(t *testing.T) *docker.Engine {
	t.Helper()
	t.Setenv("DOCKER_HOST", "")
	cache, err := lab.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	folder, err := os.MkdirTemp("", "") // a short path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	e, err := docker.Start(t.Context(), docker.Options{RunID: "test-run", Dir: filepath.Join(folder, "e"), Programs: docker.ProgramsIn(cache)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := e.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return e
}

// TestWithAnEngine runs what can share an engine: to start one takes longer than a build.
func TestWithAnEngine(t *testing.T) {
	e := newEngine(t)
	for name, test := range map[string]func(*testing.T, *docker.Engine){
		"dockerfile":                 dockerfile,
		"aDockerfileThatAddsNothing": aDockerfileThatAddsNothing,
		"aBaseWithoutATagStays":      aBaseWithoutATagStays,
		"contexts":                   contexts,
		"localFeatures":              localFeatures,
		"baseOfARegistry":            baseOfARegistry,
		"buildsThatFail":             buildsThatFail,
		"aBuildThatPrintsAnImage":    aBuildThatPrintsAnImage,
		"aBuildThatIsCancelled":      aBuildThatIsCancelled,
	} {
		t.Run(name, func(t *testing.T) { test(t, e) })
	}
}

func newBench(t *testing.T, e *docker.Engine) *bench {
	t.Helper()
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	b := &bench{T: t, engine: e, dir: t.TempDir()}
	b.load(base, images.Spec{Nonce: t.Name(), User: "dev", Env: map[string]string{"FROM_BASE": "yes"}})
	b.another()
	t.Cleanup(b.empty)
	return b
}

// empty removes every image of the engine, unless that has ended.
func (b *bench) empty() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	list, err := b.engine.Client().ImageList(ctx, client.ImageListOptions{All: true})
	for err == nil && len(list.Items) > 0 && ctx.Err() == nil {
		for _, image := range list.Items { // one that others stand on is removed with the last of them
			_, _ = b.engine.Client().ImageRemove(ctx, image.ID, client.ImageRemoveOptions{Force: true, PruneChildren: true})
		}
		list, err = b.engine.Client().ImageList(ctx, client.ImageListOptions{All: true})
	}
}

// another takes another builder.
func (b *bench) another() {
	b.said.Reset()
	b.Builder = &imagebuild.Builder{Engine: b.engine.Client(), Output: &b.said}
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bench) load(ref string, spec images.Spec) {
	b.Helper()
	img, err := images.Build(spec)
	b.must(err)
	b.must(b.engine.Load(b.Context(), ref, img))
}

func (b *bench) file(name, text string) {
	b.Helper()
	file := filepath.Join(b.dir, name)
	b.must(errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)))
}

// dockerfile is one in the folder, with the folder as its context.
func (b *bench) dockerfile(text string) imagebuild.Dockerfile {
	b.Helper()
	b.file("Dockerfile", text)
	return imagebuild.Dockerfile{File: filepath.Join(b.dir, "Dockerfile"), Context: b.dir}
}

// run runs a command in a container of an image, and gives what it printed.
func (b *bench) run(image string, argv ...string) string {
	b.Helper()
	c := b.engine.Client()
	created, err := c.ContainerCreate(b.Context(), client.ContainerCreateOptions{Config: &container.Config{Image: image, Cmd: argv}})
	b.must(err)
	defer func() {
		_, err := c.ContainerRemove(b.Context(), created.ID, client.ContainerRemoveOptions{Force: true})
		b.must(err)
	}()
	_, err = c.ContainerStart(b.Context(), created.ID, client.ContainerStartOptions{})
	b.must(err)
	wait := c.ContainerWait(b.Context(), created.ID, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	select {
	case <-wait.Result:
	case err := <-wait.Error:
		b.Fatal(err)
	}
	logs, err := c.ContainerLogs(b.Context(), created.ID, client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true})
	b.must(err)
	defer logs.Close()
	var out bytes.Buffer
	_, err = stdcopy.StdCopy(&out, &out, logs)
	b.must(err)
	return out.String()
}

// ids gives all images that the engine has, and its containers.
func (b *bench) ids() []string {
	b.Helper()
	list, err := b.engine.Client().ImageList(b.Context(), client.ImageListOptions{All: true})
	b.must(err)
	var ids []string
	for _, image := range list.Items {
		ids = append(ids, image.ID+" "+strings.Join(image.RepoTags, " "))
	}
	containers, err := b.engine.Client().ContainerList(b.Context(), client.ContainerListOptions{All: true})
	b.must(err)
	for _, c := range containers.Items {
		ids = append(ids, "container "+c.ID)
	}
	slices.Sort(ids)
	return ids
}

// same checks that the engine has what it had.
func (b *bench) same(before []string) {
	b.Helper()
	if now := b.ids(); !slices.Equal(now, before) {
		b.Errorf("the engine has\n%s\nand had\n%s", strings.Join(now, "\n"), strings.Join(before, "\n"))
	}
}

const tag = "vsc-test-run:latest"

func dockerfile(t *testing.T, e *docker.Engine) {
	b := newBench(t, e)
	before := b.ids()
	d := b.dockerfile(`ARG BASE
FROM $BASE AS first
USER root
RUN echo first >/first
FROM first AS second
ARG WORD=nothing
COPY given /given
RUN echo "$WORD" >/word
ENV WORD=$WORD
USER dev
FROM first AS third
RUN exit 9
`)
	b.file("given", "given")
	d.Target, d.Args = "second", map[string]string{"BASE": base, "WORD": "a word"}
	image, err := b.Dockerfile(t.Context(), tag, d)
	b.must(err)
	if image.User != "dev" {
		t.Errorf("the image is %+v", image)
	}
	if got := b.run(tag, "sh", "-c", "cat /first /given /word; echo $WORD $FROM_BASE; id -un"); got != "first\ngivena word\na word yes\ndev\n" {
		t.Errorf("it has %q", got)
	}
	if !strings.Contains(b.said.String(), "Step 1/") {
		t.Errorf("it said %q", b.said.String())
	}

	// Nothing is made the second time, and what a build with another result does not need any more can go.
	first := b.Made
	b.another()
	again, err := b.Dockerfile(t.Context(), tag, d)
	if err != nil || again != image || len(b.Made) != 0 {
		t.Errorf("the same again: %+v, %v, made %q", again, err, b.Made)
	}
	d.Args["WORD"] = "another"
	_, err = b.Dockerfile(t.Context(), tag, d)
	b.must(err)
	left, err := imagebuild.RemoveUnused(t.Context(), b.Engine, tag, append(first, b.Made...))
	if err != nil || len(left) == 0 || len(left) >= len(first)+len(b.Made) || slices.Contains(left, image.ID) {
		t.Errorf("of %q and %q, %q are left, %v", first, b.Made, left, err)
	}
	if got := b.run(tag, "cat", "/word"); got != "another\n" {
		t.Errorf("after what was not needed went, it has %q", got)
	}

	// What somebody else uses stays.
	_, err = b.Engine.ImageTag(t.Context(), client.ImageTagOptions{Source: tag, Target: "mine:1"})
	b.must(err)
	left, err = imagebuild.Remove(t.Context(), b.Engine, tag, left)
	b.must(err)
	if got := b.run("mine:1", "cat", "/word"); got != "another\n" {
		t.Errorf("what somebody else has tagged has %q", got)
	}
	_, err = b.Engine.ImageRemove(t.Context(), "mine:1", client.ImageRemoveOptions{})
	b.must(err)
	if left, err = imagebuild.Remove(t.Context(), b.Engine, tag, left); err != nil || len(left) > 0 {
		t.Errorf("%q are left, %v", left, err)
	}
	b.same(before)
}

// A Dockerfile that adds nothing to its base makes an image of its own all the same.
func aDockerfileThatAddsNothing(t *testing.T, e *docker.Engine) {
	b := newBench(t, e)
	before := b.ids()
	b.Labels = map[string]string{"whose": "mine"}
	on, err := b.Base(t.Context(), base)
	b.must(err)
	image, err := b.Dockerfile(t.Context(), tag, b.dockerfile("FROM "+base+"\n"))
	if err != nil || image.ID == on.ID || !slices.Contains(b.Made, image.ID) {
		t.Errorf("%+v, %v, made %q", image, err, b.Made)
	}
	left, err := imagebuild.Remove(t.Context(), b.Engine, tag, b.Made)
	if err != nil || len(left) > 0 {
		t.Errorf("%q are left, %v", left, err)
	}
	b.same(before)
}

// The image of which a build is made may be somebody's who has no tag for it any more: it is not the build's to remove.
func aBaseWithoutATagStays(t *testing.T, e *docker.Engine) {
	b := newBench(t, e)
	_, err := b.Dockerfile(t.Context(), tag, b.dockerfile("FROM "+base+"\nRUN true\nRUN true\n"))
	b.must(err)
	b.load(base, images.Spec{Nonce: "moved"}) // the first one has no tag now
	before := b.ids()
	left, err := imagebuild.Remove(t.Context(), b.Engine, tag, b.Made)
	if err != nil || len(left) > 0 || len(b.Made) != 2 {
		t.Errorf("of %q, %q are left, %v", b.Made, left, err)
	}
	if gone := len(before) - len(b.ids()); gone != 2 {
		t.Errorf("%d images went", gone)
	}
}

func contexts(t *testing.T, e *docker.Engine) {
	b := newBench(t, e)
	const text = "FROM " + base + "\nUSER root\nCOPY . /all\nRUN find /all | sort >/list\n"
	list := func(d imagebuild.Dockerfile) string {
		t.Helper()
		_, err := b.Dockerfile(t.Context(), tag, d)
		b.must(err)
		return strings.Join(strings.Fields(b.run(tag, "cat", "/list")), " ")
	}
	for _, name := range []string{"app/a", "app/b.tmp", "app/deep/c.tmp", "app/deep/kept.tmp", "app/modules/d"} {
		b.file(name, name)
	}
	b.must(os.Symlink("a", filepath.Join(b.dir, "app", "link")))
	b.file("app/sub/Dockerfile", text)
	b.file("outside/Dockerfile", text)
	app := filepath.Join(b.dir, "app")
	inside := imagebuild.Dockerfile{File: filepath.Join(app, "sub", "Dockerfile"), Context: app}
	outside := imagebuild.Dockerfile{File: filepath.Join(b.dir, "outside", "Dockerfile"), Context: app}

	const all = "/all /all/a /all/b.tmp /all/deep /all/deep/c.tmp /all/deep/kept.tmp /all/link /all/modules /all/modules/d /all/sub /all/sub/Dockerfile"
	for name, d := range map[string]imagebuild.Dockerfile{"inside": inside, "outside": outside} {
		if got := list(d); got != all {
			t.Errorf("%s: the context has %s", name, got)
		}
	}
	b.file("app/.dockerignore", "**/*.tmp\n!deep/kept.tmp\nmodules\n# a comment\n.dockerignore\nsub/Dockerfile\n")
	const rest = "/all /all/a /all/deep /all/deep/kept.tmp /all/link /all/sub"
	for name, d := range map[string]imagebuild.Dockerfile{"inside": inside, "outside": outside} {
		if got := list(d); got != rest {
			t.Errorf("%s, with a .dockerignore: the context has %s", name, got)
		}
	}
}

func localFeatures(t *testing.T, e *docker.Engine) {
	b := newBench(t, e)
	before := b.ids()
	b.file("features/one/devcontainer-feature.json", `{"id": "one", "version": "1", "name": "One",
		"options": {"word": {"type": "string", "default": "default"}}, "containerEnv": {"ONE": "1", "PATH": "/opt/one:${PATH}"}}`)
	b.file("features/one/install.sh", `#!/bin/sh
echo "$WORD $ONE $(id -un) $_REMOTE_USER $_REMOTE_USER_HOME $_CONTAINER_USER $_CONTAINER_USER_HOME $(cat beside)" >/one
`)
	b.file("features/one/beside", "beside")
	b.file("features/two/devcontainer-feature.json", `{"id": "two", "version": "1", "name": "Two", "installsAfter": ["./features/one"]}`)
	b.file("features/two/install.sh", "#!/bin/sh\ncat /one >/two; echo $PATH >>/two\n")
	install := func(options string) (imagebuild.Image, error) {
		t.Helper()
		on, err := b.Base(t.Context(), base)
		b.must(err)
		list, err := features.Load(b.dir, map[string]json.RawMessage{
			"./features/two": json.RawMessage(`{}`), "./features/one": json.RawMessage(options)}, nil)
		b.must(err)
		return b.Features(t.Context(), tag, b.dir, on, features.Users{Remote: "root", Container: "dev"}, list)
	}
	image, err := install(`{"word": "given"}`)
	b.must(err)
	if image.User != "dev" {
		t.Errorf("the image is %+v", image)
	}
	got := b.run(tag, "sh", "-c", "cat /two; id -un; echo $FROM_BASE $ONE; ls -a /")
	want := "given 1 root root /root dev /home/dev beside\n/opt/one:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\ndev\nyes 1\n"
	if !strings.HasPrefix(got, want) || strings.Contains(got, "dev-container-features") {
		t.Errorf("got %q, want %q", got, want)
	}

	b.file("features/two/install.sh", "#!/bin/sh\necho out; echo oops >&2; exit 3\n")
	built := len(b.Made)
	_, err = install(`{"word": "given"}`)
	for _, want := range []string{"build the Features: ", "non-zero code: 3", "out\n", "oops\n", "Feature ./features/two (Two): install.sh exited with code 3"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("an install.sh that fails: no %q in %v", want, err)
		}
	}
	if len(b.Made) <= built {
		t.Error("what a build made that failed is not known")
	}
	left, err := imagebuild.Remove(t.Context(), b.Engine, tag, b.Made)
	if err != nil || len(left) > 0 {
		t.Errorf("%q are left, %v", left, err)
	}
	b.same(before)
}

// An image that the engine does not have is pulled for Features, and leaves no tag.
func baseOfARegistry(t *testing.T, e *docker.Engine) {
	b := newBench(t, e)
	before := b.ids()
	r, err := registry.Start(registry.Options{Login: &registry.Login{User: "me", Password: "secret"}})
	b.must(err)
	defer r.Close()
	img, err := images.Build(images.Spec{Nonce: "registry"})
	b.must(err)
	ref, err := name.NewTag(r.Host() + "/some/base:1")
	b.must(err)
	login := func(password string) {
		t.Helper()
		config, err := json.Marshal(map[string]any{"auths": map[string]any{r.Host(): map[string][]byte{"auth": []byte("me:" + password)}}})
		b.must(err)
		b.must(os.WriteFile(filepath.Join(os.Getenv("DOCKER_CONFIG"), "config.json"), config, 0o600))
	}
	login("secret")
	b.must(push(ref, img))

	image, err := b.Base(t.Context(), ref.String())
	b.must(err)
	if got := b.run(image.ID, "cat", images.NoncePath); got != "registry" {
		t.Errorf("it has the nonce %q", got)
	}
	if refs, err := b.engine.References(t.Context(), r.Host()+"/some/base"); err != nil || len(refs) != 1 || !strings.Contains(refs[0], "@sha256:") {
		t.Errorf("the engine has it as %q, %v", refs, err)
	}
	// The engine pulls what a Dockerfile names, with the user's login.
	other := strings.TrimSuffix(ref.String(), "1") + "2"
	otherRef, err := name.NewTag(other)
	b.must(err)
	b.must(push(otherRef, img))
	_, err = b.Dockerfile(t.Context(), tag, b.dockerfile("FROM "+other+"\nRUN true\n"))
	b.must(err)
	if left, err := imagebuild.Remove(t.Context(), b.Engine, tag, b.Made); err != nil || len(left) > 0 {
		t.Errorf("of %q, %q are left, %v", b.Made, left, err)
	}
	b.must(b.engine.Remove(t.Context(), other)) // which `docker build` would leave too
	b.same(before)

	login("wrong")
	if _, err := b.Base(t.Context(), ref.String()); err == nil || !strings.Contains(err.Error(), "refuses the image") || strings.Contains(err.Error(), "wrong") {
		t.Errorf("with a wrong password: %v", err)
	}
	if _, err := b.Dockerfile(t.Context(), tag, b.dockerfile("FROM "+other+"\n")); err == nil || strings.Contains(err.Error(), "wrong") {
		t.Errorf("with a wrong password: %v", err)
	}
}

func buildsThatFail(t *testing.T, e *docker.Engine) {
	b := newBench(t, e)
	before := b.ids()
	missing := filepath.Join(b.dir, "missing")
	for name, c := range map[string]struct {
		text string
		edit func(*imagebuild.Dockerfile)
		want []string
	}{
		"a command":        {text: "FROM " + base + "\nRUN echo working; echo oops >&2; exit 7\n", want: []string{"non-zero code: 7", "working\n", "oops"}},
		"an instruction":   {text: "FROM " + base + "\nRUM true\n", want: []string{"build " + b.dir + "/Dockerfile: ", "unknown instruction: RUM"}},
		"no FROM":          {text: "RUN true\n", want: []string{"no build stage in current context"}},
		"a missing file":   {text: "FROM " + base + "\nCOPY nothing /x\n", want: []string{"nothing", "COPY failed"}},
		"a missing stage":  {text: "FROM " + base + "\n", edit: func(d *imagebuild.Dockerfile) { d.Target = "x" }, want: []string{"failed to reach build target x"}},
		"a missing base":   {text: "FROM 127.0.0.1:1/no/base:1\n", want: []string{"connection refused"}},
		"no Dockerfile":    {edit: func(d *imagebuild.Dockerfile) { d.File = missing }, want: []string{"the Dockerfile: ", "no such file"}},
		"no context":       {edit: func(d *imagebuild.Dockerfile) { d.Context = missing }, want: []string{"the context of the build: ", "no such file"}},
		"file for context": {edit: func(d *imagebuild.Dockerfile) { d.Context = d.File }, want: []string{"Dockerfile is not a folder"}},
	} {
		b.another()
		d := b.dockerfile(c.text)
		if c.edit != nil {
			c.edit(&d)
		}
		_, err := b.Dockerfile(t.Context(), tag, d)
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: no %q in %v", name, want, err)
			}
		}
		if left, err := imagebuild.Remove(t.Context(), b.Engine, tag, b.Made); err != nil || len(left) > 0 {
			t.Errorf("%s: of %q, %q are left, %v", name, b.Made, left, err)
		}
		b.same(before)
	}
}

// A command of a build can print what looks like an image that a step made. It is none of the build's.
func aBuildThatPrintsAnImage(t *testing.T, e *docker.Engine) {
	b := newBench(t, e)
	info, err := b.Engine.ImageInspect(t.Context(), base)
	b.must(err)
	id := strings.TrimPrefix(info.ID, "sha256:")
	text := fmt.Sprintf("FROM %s\nRUN echo ' ---> %s'; printf ' ---> %s\\n'\n", base, id[:12], id)
	_, err = b.Dockerfile(t.Context(), tag, b.dockerfile(text))
	b.must(err)
	if len(b.Made) != 1 || slices.Contains(b.Made, info.ID) {
		t.Errorf("made %q, and %s is the base", b.Made, info.ID)
	}
}

// A signal ends a build, and it leaves nothing that runs.
func aBuildThatIsCancelled(t *testing.T, e *docker.Engine) {
	b := newBench(t, e)
	before := b.ids()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	b.Output = writer(func(text string) {
		if strings.Contains(text, "waiting") { // said by the step's container, and not by the builder that is about to make it
			cancel()
		}
	})
	_, err := b.Dockerfile(ctx, tag, b.dockerfile("FROM "+base+"\nRUN true\nRUN echo wai''ting; sleep 600\n"))
	if !errors.Is(err, context.Canceled) && (err == nil || !strings.Contains(err.Error(), "canceled")) {
		t.Errorf("got %v", err)
	}
	for {
		list, err := b.Engine.ContainerList(t.Context(), client.ContainerListOptions{All: true})
		b.must(err)
		if len(list.Items) == 0 {
			break
		}
		select {
		case <-t.Context().Done():
			t.Fatal("the build's container is left")
		case <-time.After(20 * time.Millisecond):
		}
	}
	if left, err := imagebuild.Remove(t.Context(), b.Engine, tag, b.Made); err != nil || len(left) > 0 || len(b.Made) != 1 {
		t.Errorf("of %q, %q are left, %v", b.Made, left, err)
	}
	b.same(before)
}

type writer func(string)

func (w writer) Write(b []byte) (int, error) { w(string(b)); return len(b), nil }

func TestTheEngineEndsInTheMiddle(t *testing.T) {
	b := newBench(t, newEngine(t))
	b.Output = writer(func(text string) {
		if strings.Contains(text, "waiting") {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			_ = b.engine.Close(ctx)
		}
	})
	_, err := b.Dockerfile(t.Context(), tag, b.dockerfile("FROM "+base+"\nRUN echo wai''ting; sleep 600\n"))
	if err == nil || !strings.Contains(err.Error(), "the Docker Engine stopped answering") {
		t.Errorf("got %v", err)
	}
}

func push(ref name.Tag, img remote.Taggable) error {
	return remote.Push(ref, img, remote.WithAuthFromKeychain(authn.DefaultKeychain))
}
