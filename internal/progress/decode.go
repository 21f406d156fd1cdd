package progress

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"dagger/parity/internal/report"
)

// lineLimit bounds one line of a step's output, in bytes.
const lineLimit = 4 << 20

// Decode reads a step's standard output until its end and gives each line to onEvent or, where it is not an event, without
// its newline to onOther. A line of more than 4 MiB is never an event: onOther gets its beginning and a note. The error is
// the reader's.
func Decode(r io.Reader, onEvent func(report.Event), onOther func(line string)) error {
	in := bufio.NewReaderSize(r, 64<<10)
	var line []byte
	dropped := 0
	for {
		part, err := in.ReadSlice('\n')
		room := min(len(part), lineLimit-len(line))
		line = append(line, part[:room]...)
		dropped += len(part) - room
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if len(line) > 0 {
			decodeLine(line, dropped, onEvent, onOther)
		}
		line, dropped = line[:0], 0
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read a step's output: %w", err)
		}
	}
}

func decodeLine(line []byte, dropped int, onEvent func(report.Event), onOther func(string)) {
	line = bytes.TrimRight(line, "\r\n")
	if dropped > 0 {
		onOther(fmt.Sprintf("%s [... %d bytes left out ...]", line, dropped))
		return
	}
	var e report.Event
	if len(line) > 0 && line[0] == '{' && json.Unmarshal(line, &e) == nil && e.Kind.Known() && !e.Time.IsZero() {
		onEvent(e)
		return
	}
	onOther(string(line))
}
