package report

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// secret is in each form of a secret that a transcript hides.
const secret = "s3cr3tvalue"

// forms are texts with the secret, and what must be left of them.
var forms = map[string]string{
	"https://user:" + secret + "@host/x":                                                        "https://user:REDACTED@host/x",
	"https://user:p@" + secret + "@host/x":                                                      "https://user:REDACTED@host/x",
	"https://" + secret + "@host/x":                                                             "https://REDACTED@host/x",
	"socks5://:" + secret + "@proxy:1080":                                                       "socks5://:REDACTED@proxy:1080",
	"GET /a?x=1&access_token=" + secret + "&y=2":                                                "GET /a?x=1&access_token=REDACTED&y=2",
	"/b?X-Amz-Signature=" + secret + " 403":                                                     "/b?X-Amz-Signature=REDACTED 403",
	"/b?sig=" + secret + "#top":                                                                 "/b?sig=REDACTED#top",
	"Authorization: Bearer " + secret:                                                           "Authorization: Bearer REDACTED",
	"proxy-authorization: Basic " + secret + "\nhost: x":                                        "proxy-authorization: Basic REDACTED\nhost: x",
	`{"Authorization":"Basic ` + secret + `","a":1}`:                                            `{"Authorization":"Basic REDACTED","a":1}`,
	"REGISTRY_PASSWORD=" + secret + " docker":                                                   "REGISTRY_PASSWORD=REDACTED docker",
	"--api-key=" + secret:                                                                       "--api-key=REDACTED",
	`{"auths":{"r":{"auth": "` + secret + `"}}}`:                                                `{"auths":{"r":{"auth": "REDACTED"}}}`,
	`{"refresh_token":"` + secret + `"}`:                                                        `{"refresh_token":"REDACTED"}`,
	"-----BEGIN OPENSSH PRIVATE KEY-----\n" + secret + "\n-----END OPENSSH PRIVATE KEY-----\nx": "[a private key: REDACTED]\nx",
	"-----BEGIN PRIVATE KEY-----\n" + secret:                                                    "[a private key: REDACTED]", // cut off
}

func TestSecretsAreHidden(t *testing.T) {
	for text, want := range forms {
		if got := Redact(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
		if got := Redact(want); got != want {
			t.Errorf("%q is redacted again: %q", want, got)
		}
		if got := Clean("the subject said: " + text); strings.Contains(got, secret) {
			t.Errorf("a report's text keeps the secret: %q", got)
		}
	}
	for _, text := range []string{ // what is none stays
		"https://host:8080/a@b", "ssh://root@192.0.2.1:22", "git@host:owner/name", "image@sha256:0123", "the token is missing",
		"error: ${HOME} and $1 and ${1}", "unknown key \"x\": see password.md", "a checksum of 00", "TOKENS: 5", "{\"author\":\"me\"}",
	} {
		if got := Redact(text); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
	if got := Redact("https://u:" + secret + "@h ${1} $0"); got != "https://u:REDACTED@h ${1} $0" {
		t.Errorf("a dollar sign of the text's own is not the replacement's: %q", got)
	}
}

func TestLongOutputsAreCutInTheirMiddle(t *testing.T) {
	short := strings.Repeat("x", OutputLimit)
	if got := Bounded([]byte(short)); got != short {
		t.Errorf("%d bytes became %d", len(short), len(got))
	}
	got := Bounded([]byte("first" + strings.Repeat("x", OutputLimit) + "last"))
	if len(got) > OutputLimit+100 || !strings.HasPrefix(got, "firstx") || !strings.HasSuffix(got, "xlast") || !strings.Contains(got, "\n[9 bytes are left out]\n") {
		t.Errorf("%d bytes, %q ... %q", len(got), got[:20], got[len(got)-20:])
	}
	// What tells that it is a secret may be in what is left out.
	key := "-----BEGIN PRIVATE KEY-----\n" + strings.Repeat(secret+"\n", OutputLimit/4) + "-----END PRIVATE KEY-----\nlast"
	for _, text := range []string{key, strings.Repeat("x", OutputLimit/2) + key, strings.Repeat("y", OutputLimit/2-10) + "password=" + strings.Repeat("z", OutputLimit)} {
		if got := Bounded([]byte(text)); strings.Contains(got, secret) || strings.Contains(got, "zz") {
			t.Errorf("a part of a secret was kept: ... %q", got[len(got)-40:])
		}
	}
}

func TestTranscript(t *testing.T) {
	dir := t.TempDir()
	started := time.Date(2026, 12, 1, 2, 3, 4, 5e6, time.UTC)
	err := WriteTranscript(dir, "egress/builtin/deny", []Command{
		{Number: 1, Argv: []string{"/x/my cli", "up", "--token=" + secret, "it's"}, Started: started, Elapsed: 2 * time.Second,
			Stdout: "one\ntwo\n", Stderr: "\x1b[31mred\x1b[0m\r\nbell\x07 \xff\n"},
		{Number: 2, Argv: []string{"cli", "ssh"}, Started: started, ExitCode: 23, Stderr: "no end"},
		{Number: 3, Argv: []string{"cli", "stop"}, Started: started, ExitCode: -1, Ended: "deadline of https://u:" + secret + "@h passed"},
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "transcripts", "egress-builtin-deny.txt")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"The subject's commands in egress/builtin/deny, in the order in which they ended.\n",
		"\n[1] 02:03:04.005  '/x/my cli' up --token=REDACTED 'it'\"'\"'s'\n    exit code 0, after 2.0s\n",
		"    stdout  one\n    stdout  two\n    stderr  \\x1b[31mred\\x1b[0m\n    stderr  bell\\x07 \\xff\n",
		"\n[2] 02:03:04.005  cli ssh\n    exit code 23,", "    stderr  no end\n",
		"\n[3] 02:03:04.005  cli stop\n    deadline of https://u:REDACTED@h passed,",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(string(text), secret) || strings.ContainsAny(string(text), "\x1b\x07") {
		t.Errorf("a secret or a control character:\n%s", text)
	}
	// A run removes the transcripts of an older one, and nothing else of the folder.
	own := filepath.Join(dir, "transcripts", "notes.md")
	if err := os.WriteFile(own, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Prepare(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("an older run's transcript is still there")
	}
	if _, err := os.Stat(own); err != nil {
		t.Error(err)
	}
}

// A check that broke says where the subject's own words are.
func TestABrokenCheckNamesItsCommands(t *testing.T) {
	r := sample()
	for i := range r.Cases {
		for j := range r.Cases[i].Checks {
			r.Cases[i].Checks[j].Commands = []int{3, 4}
		}
	}
	r.Head.Subject.Adapter = &Adapter{Name: "foreign.yaml", For: "foreign", SHA256: "00ff", Deviations: []string{"up: it has no message"}}
	got := tableIn(t, r, TableStyle{Width: 200})
	for _, want := range []string{"commands 3 to 4 of transcripts/", "foreign.yaml for foreign, sha256 00ff, 1 deviation", "up: it has no message"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if got := transcriptOf("a/b/c", Check{Commands: []int{7}}); got != "command 7 of transcripts/a-b-c.txt" {
		t.Error(got)
	}
	if got := transcriptOf("a/b/c", Check{}); got != "" {
		t.Error(got)
	}
}

// A secret is told by its form wherever it stands, and a key without its end is one.
func TestSecretsOfOtherForms(t *testing.T) {
	for _, secret := range []string{
		"--token hunter2pw", "password: hunter2pw", "X-Api-Key: hunter2pw", "token=x\n-----BEGIN OPENSSH PRIVATE KEY-----\nhunter2pw\n",
		"ghp_hunter2pwhunter2pwhunter2pw", "xoxb-hunter2pw-hunter2pw", "eyJhbGciOiJIUzI1.hunter2pwhunter2.c2ln",
	} {
		if got := Redact("before\n" + secret); strings.Contains(got, "hunter2pw") || !strings.HasPrefix(got, "before\n") {
			t.Errorf("%q is shown as %q", secret, got)
		}
	}
	for _, plain := range []string{"the token expired", "no password was given", "key: value", "--tokens-per-second 5 was not understood", "AKIA"} {
		if got := Redact(plain); got != plain {
			t.Errorf("%q is shown as %q", plain, got)
		}
	}
}

// However long an output is, little of it is looked at.
func TestALongOutputIsCut(t *testing.T) {
	got := Bounded(bytes.Repeat([]byte("0123456789abcdef\n"), 1<<20))
	if len(got) > OutputLimit+200 || !strings.Contains(got, "bytes are left out") {
		t.Errorf("%d bytes", len(got))
	}
}
