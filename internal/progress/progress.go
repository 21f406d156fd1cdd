// Package progress shows a run while it runs: it decodes the events that steps print, renders those of several labs together,
// and collects each lab's results, also those of a step that died.
package progress

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"dagger/parity/internal/report"
)

// Progress renders events: a line for each case that ended, each check that broke, and each note. It is
// safe for concurrent use. It does not report the writer's errors: a run does not stop because nobody
// watches it.
type Progress struct {
	w     io.Writer
	style Style
	start time.Time
	now   func() time.Time

	quit    chan struct{} // closed by Close
	ending  sync.Once
	ticking sync.WaitGroup

	mu     sync.Mutex // guards what follows and writing
	labs   []lab      // in the order of their first event
	shown  bool       // the progress line is on the screen
	closed bool
}

// Style says how a Progress looks.
type Style struct {
	Terminal bool // below the lines there is one more, rewritten every second, that says what each lab is doing
	Verbose  bool // elsewhere than on a terminal, each check and each start of a case is a line too
}

// lab is what one lab is doing; its case is empty between cases.
type lab struct {
	name, id, check string
	noted           []string // the case's notes so far: a problem is told as it comes, and is in the case's result again

	heard time.Time // the first tick after its last event; zero if there was none yet
	told  time.Time // the first tick after a line about it was last printed; zero likewise
}

// lull is how long no line is printed about a lab until one says what it is doing.
const lull = 5 * time.Minute

// New renders to w. Elapsed times count from start. Close must be called.
func New(w io.Writer, style Style, start time.Time) *Progress {
	p := newProgress(w, style, start, time.Now)
	ticker := time.NewTicker(time.Second)
	p.ticking.Go(func() {
		defer ticker.Stop()
		p.follow(ticker.C)
	})
	return p
}

func newProgress(w io.Writer, style Style, start time.Time, now func() time.Time) *Progress {
	return &Progress{w: w, style: style, start: start, now: now, quit: make(chan struct{})}
}

// follow rewrites the progress line, and says which labs are silent, at each tick until Close.
func (p *Progress) follow(ticks <-chan time.Time) {
	for {
		select {
		case <-ticks:
			p.mu.Lock()
			p.print(p.silent())
			p.mu.Unlock()
		case <-p.quit:
			return
		}
	}
}

// Event takes one event of the lab with the given name.
func (p *Progress) Event(name string, e report.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.labs, func(l lab) bool { return l.name == name })
	if i < 0 {
		p.labs = append(p.labs, lab{name: name})
		i = len(p.labs) - 1
	}
	l := &p.labs[i]
	l.heard = time.Time{}
	text := ""
	switch e.Kind {
	case report.Started:
		text = p.line(strings.TrimSpace("lab "+name), "started", about(e.Head))
	case report.CaseStarted:
		l.id, l.check, l.noted = e.Case, "", nil
		if p.everything() {
			text = p.line(e.Case, "started")
		}
	case report.CheckStarted:
		if e.Check != nil {
			l.id, l.check = e.Case, e.Check.FullName()
		}
	case report.CheckDone:
		if e.Check != nil {
			if p.everything() || e.Check.Broke() {
				text = p.line(e.Case, e.Check.Phase, e.Check.Name, e.Check.Word())
			}
			if e.Check.Broke() {
				text += report.Details(*e.Check, detailIndent)
			}
		}
	case report.CaseDone:
		l.id, l.check = "", ""
		if e.Result != nil {
			text = p.line(e.Case, strings.ToUpper(string(e.Result.Verdict)), report.Elapsed(e.Result.Elapsed))
			for _, problem := range e.Result.Problems {
				if !slices.Contains(l.noted, problem) {
					text += detailIndent + "problem   " + indented(problem) + "\n"
				}
			}
		}
		l.noted = nil
	case report.Note:
		text = p.line(e.Case, e.Text)
		l.noted = append(l.noted, e.Text)
	}
	if text != "" || p.style.Terminal {
		l.told = time.Time{}
	}
	p.print(text)
}

// everything tells whether each check and each start of a case is a line.
func (p *Progress) everything() bool { return p.style.Verbose && !p.style.Terminal }

// silent is a line for each lab in the middle of a case about which no line was printed for a lull. The
// caller holds mu.
func (p *Progress) silent() (text string) {
	for i := range p.labs {
		l := &p.labs[i]
		if l.id == "" {
			continue
		}
		now := p.now()
		if l.heard.IsZero() {
			l.heard = now
		}
		if l.told.IsZero() {
			l.told = now
		}
		if now.Sub(l.told) < lull {
			continue
		}
		l.told = now
		state := "still under way"
		if quiet := now.Sub(l.heard); quiet >= lull {
			state += "; nothing new for " + quiet.Truncate(time.Minute).String()
		}
		text += p.line(l.id, l.check, state)
	}
	return text
}

// Note prints a line of the run itself.
func (p *Progress) Note(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.print(p.line(fmt.Sprintf(format, args...)))
}

// Close removes the progress line. What comes after it is printed as plain lines. It may be called more than once.
func (p *Progress) Close() {
	p.ending.Do(func() { close(p.quit) })
	p.ticking.Wait() // the last tick is followed to its end
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.print("")
}

// detailIndent is where the lines below an event's line begin.
const detailIndent = "            "

func indented(s string) string {
	return strings.ReplaceAll(report.Clean(s), "\n", "\n"+detailIndent+"          ")
}

// line is an event's line: the elapsed time, then the parts that are not empty.
func (p *Progress) line(parts ...string) string {
	parts = slices.DeleteFunc(parts, func(s string) bool { return s == "" })
	text := strings.TrimSpace(report.Clean(strings.Join(parts, "  ")))
	text = strings.ReplaceAll(text, "\n", "\n"+detailIndent)
	return fmt.Sprintf("[%6.1fs] %s\n", p.now().Sub(p.start).Seconds(), text)
}

// about says in one line what a lab's step knows of the place where it runs.
func about(h *report.Head) string {
	if h == nil {
		return ""
	}
	text := ""
	for _, part := range []struct{ label, value string }{
		{"KVM", h.KVM}, {"kernel", h.Kernel}, {"MicroSandbox", h.MicroSandbox.Version},
	} {
		if part.value != "" {
			text += ", " + part.label + " " + part.value
		}
	}
	if h.MicroSandbox.StandIn {
		text += ", A STAND-IN FOR MICROSANDBOX"
	}
	return strings.TrimPrefix(text, ", ")
}

// print writes text, which is whole lines, above the progress line, in one write. The caller holds mu.
func (p *Progress) print(text string) {
	var b bytes.Buffer
	if p.shown {
		b.WriteString("\r\x1b[K")
		p.shown = false
	}
	b.WriteString(text)
	if p.style.Terminal && !p.closed {
		b.WriteString(p.status())
		p.shown = true
	}
	if b.Len() > 0 {
		_, _ = p.w.Write(b.Bytes())
	}
}

// status is the progress line, cut to the terminal's width: a line that wraps cannot be rewritten.
func (p *Progress) status() string {
	width := 80
	if f, ok := p.w.(*os.File); ok {
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 {
			width = columns
		}
	}
	line := p.statusOf(func(id string) string { return id })
	if utf8.RuneCountInString(line) >= width {
		line = p.statusOf(func(id string) string { return id[strings.LastIndex(id, "/")+1:] })
	}
	if runes := []rune(line); len(runes) >= width {
		line = string(runes[:max(width-1, 0)])
	}
	return line
}

func (p *Progress) statusOf(name func(id string) string) string {
	var busy []string
	for _, l := range p.labs {
		if l.id == "" {
			continue
		}
		part := name(l.id)
		if l.check != "" {
			part += " " + l.check
		}
		busy = append(busy, part)
	}
	elapsed := p.now().Sub(p.start).Truncate(time.Second).String()
	return report.Clean(fmt.Sprintf("[%7s] %s", elapsed, strings.Join(busy, " | ")))
}
