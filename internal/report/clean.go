package report

import (
	"fmt"
	"strings"
	"unicode"
)

// textLimit bounds one free text of a report, in bytes, the note about what was left out included.
const textLimit = 4 << 10

// Clean makes a text from anywhere, a guest included, fit for a report and a terminal: control
// characters and broken UTF-8 are shown as escapes (a newline and a tab stay), and of more than 4
// KiB the beginning and the end are kept, with a note between them: what went wrong first and the
// last words are what a reader needs. Secrets go, as Redact has it. Cleaning twice changes nothing
// more.
func Clean(s string) string {
	s = escape(Redact(s))
	if len(s) <= textLimit {
		return s
	}
	const keep = textLimit/2 - 64
	return fmt.Sprintf("%s\n[... %d bytes left out ...]\n%s",
		strings.ToValidUTF8(s[:keep], ""), len(s)-2*keep, strings.ToValidUTF8(s[len(s)-keep:], ""))
}

// escape shows control characters and broken UTF-8 as escapes.
func escape(s string) string {
	s = strings.ReplaceAll(s, "\r\n", "\n")
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == unicode.ReplacementChar && !strings.HasPrefix(s[i:], string(unicode.ReplacementChar)):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r == '\n', r == '\t', unicode.IsPrint(r):
			b.WriteRune(r)
		case r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

func cleaned(texts []string) []string {
	var out []string
	for _, s := range texts {
		out = append(out, Clean(s))
	}
	return out
}
