package report

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"al.essio.dev/pkg/shellescape"
	"github.com/google/renameio/v2"
)

// TranscriptFolder is the folder with the transcripts, in a report folder.
const TranscriptFolder = "transcripts"

// Command is one command of the subject that has ended.
type Command struct {
	Number   int           `json:"number"` // in its case, from 1
	Argv     []string      `json:"argv"`
	Started  time.Time     `json:"started"`
	Elapsed  time.Duration `json:"elapsedNanoseconds"`
	ExitCode int           `json:"exitCode"`        // -1 if it never started
	Ended    string        `json:"ended,omitempty"` // why it did not end by itself
	Stdout   string        `json:"stdout,omitempty"`
	Stderr   string        `json:"stderr,omitempty"`
}

// OutputLimit is how many bytes of an output a transcript keeps: its beginning and its end.
const OutputLimit = 16 << 10

// Bounded returns an output for a transcript: without secrets, and cut in its middle if it is long.
func Bounded(output []byte) string {
	// Redaction comes before the cut: half a secret cannot be told by its form. Of an output that is very
	// long it sees the beginning and the end, with room for a secret beside what is kept.
	if window := 4 * OutputLimit; len(output) > 2*window {
		output = slices.Concat(output[:window], fmt.Appendf(nil, "\n[%d bytes are left out]\n", len(output)-2*window), output[len(output)-window:])
	}
	text := Redact(string(output))
	if cut := len(text) - OutputLimit; cut > 0 {
		text = fmt.Sprintf("%s\n[%d bytes are left out]\n%s", text[:OutputLimit/2], cut, text[len(text)-OutputLimit/2:])
	}
	return text
}

// secrets are the forms of text that are or have secrets, and what stands in their place.
var secrets = []struct {
	form *regexp.Regexp
	with string
}{
	// A key without its end is one too. It comes first: no other form may take a part of it.
	{regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\z)`), "[a private key: REDACTED]"},
	{regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://[^/\s:@"']*:)[^/\s"']+@`), "${1}REDACTED@"},
	{regexp.MustCompile(`(?i)(\bhttps?://)[^/\s:@"']+@`), "${1}REDACTED@"},
	{regexp.MustCompile(`(?i)([?&](?:[a-z0-9_.-]*signature[a-z0-9_.-]*|sig|key)=)[^&\s"'#]+`), "${1}REDACTED"},
	{regexp.MustCompile(`(?i)(\b(?:proxy-)?authorization["']?:\s*["']?(?:[a-z]+\s+)?)[^\s"',]+`), "${1}REDACTED"},
	{regexp.MustCompile(`(?i)(["'][a-z0-9_.-]*(?:` + secretWords + `|auth)["']\s*:\s*["'])[^"']+`), "${1}REDACTED"},
	{regexp.MustCompile(`(?i)([a-z0-9_.-]*(?:` + secretWords + `)[a-z0-9_.-]*=["']?)[^&\s"'#]+`), "${1}REDACTED"},
	{regexp.MustCompile(`(?i)(--?[a-z0-9-]*(?:` + secretWords + `)\s+)[^\s"'-][^\s"']*`), "${1}REDACTED"},
	{regexp.MustCompile(`(?im)(^\s*[a-z0-9_.-]*(?:` + secretWords + `):[ \t]+)\S+`), "${1}REDACTED"},
	// The forms in which well-known services give tokens, and JSON Web Tokens.
	{regexp.MustCompile(`\b(?:gh[oprsu]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{16,}|xox[a-z]-[A-Za-z0-9-]{10,}|AKIA[A-Z0-9]{16})`), "REDACTED"},
	{regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*`), "REDACTED"},
}

// secretWords are words in the names of secrets.
const secretWords = `token|secret|password|passwd|api[_-]?key|access[_-]?key`

// Redact returns a text without the secrets that it shows by their form: users and passwords in
// URLs, tokens and keys in queries, options, variables and JSON, authorization headers and private
// keys.
func Redact(text string) string {
	for _, s := range secrets {
		text = s.form.ReplaceAllString(text, s.with)
	}
	return text
}

// TranscriptFile returns the name of a case's transcript in the report folder.
func TranscriptFile(caseID string) string {
	return filepath.Join(TranscriptFolder, strings.ReplaceAll(caseID, "/", "-")+".txt")
}

// WriteTranscript writes the commands of a case into the report folder.
func WriteTranscript(dir, caseID string, commands []Command) error {
	file := filepath.Join(dir, TranscriptFile(caseID))
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "The subject's commands in %s, in the order in which they ended.\n", caseID)
	for _, c := range commands {
		fmt.Fprintf(&b, "\n[%d] %s  %s\n", c.Number, c.Started.UTC().Format("15:04:05.000"), Redact(shellescape.QuoteCommand(c.Argv)))
		how := fmt.Sprintf("exit code %d", c.ExitCode)
		if c.Ended != "" {
			how = Redact(c.Ended)
		}
		fmt.Fprintf(&b, "    %s, after %s\n", escape(how), Elapsed(c.Elapsed))
		for _, out := range []struct{ name, text string }{{"stdout", c.Stdout}, {"stderr", c.Stderr}} {
			if out.text == "" {
				continue
			}
			for line := range strings.SplitSeq(strings.TrimSuffix(escape(out.text), "\n"), "\n") {
				fmt.Fprintf(&b, "    %s  %s\n", out.name, line)
			}
		}
	}
	return renameio.WriteFile(file, b.Bytes(), 0o644)
}

// transcriptOf says where in the transcript the commands of a check are; empty if it ran none.
func transcriptOf(caseID string, c Check) string {
	if len(c.Commands) == 0 {
		return ""
	}
	first, last := c.Commands[0], c.Commands[len(c.Commands)-1]
	if first == last {
		return fmt.Sprintf("command %d of %s", first, TranscriptFile(caseID))
	}
	return fmt.Sprintf("commands %d to %d of %s", first, last, TranscriptFile(caseID))
}

// removeTranscripts removes an older run's transcripts, and nothing else.
func removeTranscripts(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, TranscriptFolder, "*.txt"))
	for _, file := range files {
		err = errors.Join(err, os.Remove(file))
	}
	_ = os.Remove(filepath.Join(dir, TranscriptFolder)) // something of the user's may be in it
	return err
}
