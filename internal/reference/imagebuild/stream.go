package imagebuild

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/client"

	"dagger/parity/internal/proc"
)

// build runs a build whose context is written by write. What is for people is called what.
func (b *Builder) build(ctx context.Context, what string, o client.ImageBuildOptions, write func(io.Writer) error) (Image, error) {
	before, err := b.images(ctx)
	if err != nil {
		return Image{}, err
	}
	o.Remove, o.ForceRemove = true, true // the containers of its steps
	if len(o.Tags) > 0 {
		o.Labels = b.Labels
	}
	fmt.Fprintf(b.Output, "building %s\n", what)
	reader, writer := io.Pipe()
	defer reader.Close()
	written := make(chan error, 1)
	go func() {
		err := write(writer)
		written <- err
		writer.CloseWithError(err)
	}()
	res, err := b.Engine.ImageBuild(ctx, reader, o)
	if err != nil {
		reader.Close()
		if contextErr := <-written; contextErr != nil && !errors.Is(contextErr, io.ErrClosedPipe) {
			err = contextErr
		}
		return Image{}, fmt.Errorf("build %s: %w", what, err)
	}
	defer res.Body.Close()
	s := steps{Output: b.Output}
	err = s.follow(res.Body)
	b.addAll(ctx, s.made, before)
	if err != nil {
		return Image{}, fmt.Errorf("build %s: %w", what, err)
	}
	return b.inspect(ctx, s.result)
}

// addAll adds images to Made by their short IDs, also when the build was cancelled.
func (b *Builder) addAll(ctx context.Context, short, before []string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), addDeadline)
	defer cancel()
	for _, id := range short {
		if image, err := b.inspect(ctx, id); err == nil {
			b.add(image.ID, before)
		}
	}
}

// addDeadline bounds how long an engine is asked for the images of a build.
const addDeadline = 30 * time.Second

// images gives the IDs of all images that the engine has, those of builds' steps included.
func (b *Builder) images(ctx context.Context) (ids []string, err error) {
	list, err := b.Engine.ImageList(ctx, client.ImageListOptions{All: true})
	for _, image := range list.Items {
		ids = append(ids, image.ID)
	}
	return ids, err
}

// steps is what a build says of its steps.
type steps struct {
	Output io.Writer

	said   proc.Tail
	result string   // the ID of the image
	made   []string // the IDs of the images that steps made; short ones
	base   bool     // the next ID is that of what a FROM names
	cached bool     // the next ID is that of an image that was there
}

// follow reads a build's messages to its end, and fails when the build did: with its own words.
func (s *steps) follow(body io.Reader) error {
	for d := json.NewDecoder(body); ; {
		var m jsonstream.Message
		err := d.Decode(&m)
		switch {
		case errors.Is(err, io.EOF) && s.result != "":
			return nil
		case errors.Is(err, io.EOF):
			return s.failure("it ended without an image")
		case err != nil:
			return s.failure("the Docker Engine stopped answering: " + err.Error())
		case m.Error != nil:
			return s.failure(m.Error.Message)
		case m.Aux != nil:
			s.takeResult(*m.Aux)
		case m.Stream != "":
			s.take(m.Stream)
		case m.Status != "" && m.Progress == nil: // of a pull
			s.take(strings.TrimSpace(m.ID+" "+m.Status) + "\n")
		}
	}
}

func (s *steps) failure(why string) error {
	if last := s.said.String(); last != "" {
		why += "; its last words:\n    " + strings.ReplaceAll(last, "\n", "\n    ")
	}
	return errors.New(why)
}

func (s *steps) takeResult(aux json.RawMessage) {
	var result struct{ ID string }
	if json.Unmarshal(aux, &result) == nil && result.ID != "" {
		s.result = result.ID
	}
}

var (
	stepLine  = regexp.MustCompile(`^Step \d+/\d+ : (\S+)`)
	imageLine = regexp.MustCompile(`^ ---> ([0-9a-f]{12,64})\n?$`)
)

// take reads what is for people, from which alone it can be learnt which images the steps made. A command of the build may print the same,
// so who asks looks whether the images are new.
func (s *steps) take(text string) {
	_, _ = io.WriteString(s.Output, text)
	_, _ = s.said.Write([]byte(text))
	step, id := stepLine.FindStringSubmatch(text), imageLine.FindStringSubmatch(text)
	switch {
	case step != nil:
		s.base, s.cached = strings.EqualFold(step[1], "FROM"), false
	case text == " ---> Using cache\n":
		s.cached = true
	case id != nil:
		if !s.base && !s.cached {
			s.made = append(s.made, id[1])
		}
		s.base, s.cached = false, false
	}
}
