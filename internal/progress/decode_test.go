package progress

import (
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"dagger/parity/internal/report"
)

func encode(t *testing.T, e report.Event) string {
	t.Helper()
	if e.Time.IsZero() {
		e.Time = start
	}
	data, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	return string(data) + "\n"
}

func decode(t *testing.T, r io.Reader) (events []report.Event, other []string, err error) {
	t.Helper()
	err = Decode(r, func(e report.Event) { events = append(events, e) }, func(line string) { other = append(other, line) })
	return events, other, err
}

func TestDecodeTellsEventsFromOtherLines(t *testing.T) {
	strangers := []string{
		"a plain line",
		"",
		`{"kind":"note"}`, // no time
		`{"time":"2026-10-01T12:00:00Z","kind":"skipped"}`,
		`{"time":"2026-10-01T12:00:00Z","kind":"note"} and more`,
		`["note"]`,
		`{"time":"2026-10-01T12:00:00Z","kind":"no`, // the step died while it wrote
	}
	first := encode(t, report.Event{Kind: report.CaseStarted, Case: denyID})
	second := encode(t, report.Event{Kind: report.Note, Text: "n"})
	text := first + strings.Join(strangers[:3], "\n") + "\r\n" + second + strings.Join(strangers[3:], "\n")
	for name, r := range map[string]io.Reader{
		"whole": strings.NewReader(text), "byte by byte": iotest.OneByteReader(strings.NewReader(text)),
	} {
		events, other, err := decode(t, r)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		want := []report.Event{{Time: start, Kind: report.CaseStarted, Case: denyID}, {Time: start, Kind: report.Note, Text: "n"}}
		if !reflect.DeepEqual(events, want) {
			t.Errorf("%s: the events are %+v, want %+v", name, events, want)
		}
		if !reflect.DeepEqual(other, strangers) {
			t.Errorf("%s: the other lines are\n%q\nwant\n%q", name, other, strangers)
		}
	}
}

func TestDecodeOfLongLines(t *testing.T) {
	long := encode(t, report.Event{Kind: report.Note, Text: strings.Repeat("x", 3<<20)})
	tooLong := encode(t, report.Event{Kind: report.Note, Text: strings.Repeat("y", 5<<20)})
	after := encode(t, report.Event{Kind: report.Note, Text: "after"})
	events, other, err := decode(t, strings.NewReader(long+tooLong+after))
	if err != nil || len(events) != 2 || len(events[0].Text) != 3<<20 || events[1].Text != "after" {
		t.Fatalf("%d events and the error %v, want the one of 3 MiB and the one after the line of 5 MiB", len(events), err)
	}
	if len(other) != 1 || len(other[0]) > 4<<20+100 || !strings.HasSuffix(other[0], "bytes left out ...]") {
		t.Fatalf("the line of 5 MiB gives %d other lines, want one with a note of what was left out", len(other))
	}
}

func TestDecodeGivesTheReadersError(t *testing.T) {
	broken := errors.New("the pipe broke")
	first := encode(t, report.Event{Kind: report.Note, Text: "n"})
	events, other, err := decode(t, io.MultiReader(strings.NewReader(first+"rest"), iotest.ErrReader(broken)))
	if !errors.Is(err, broken) || len(events) != 1 || !reflect.DeepEqual(other, []string{"rest"}) {
		t.Errorf("%d events, the other lines %q and the error %v; want 1, the rest, and the reader's", len(events), other, err)
	}
}
