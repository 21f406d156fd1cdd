package probe

import (
	"strconv"
	"unicode/utf8"
)

// object is a JSON object while it is written, one key after another.
type object []byte

func (o *object) key(name string) {
	if len(*o) == 0 {
		*o = append(*o, '{')
	} else {
		*o = append(*o, ',')
	}
	*o = append(*o, '"')
	*o = append(*o, name...)
	*o = append(*o, '"', ':')
}

func (o *object) number(name string, n int64) {
	o.key(name)
	*o = strconv.AppendInt(*o, n, 10)
}

func (o *object) unsigned(name string, n uint64) {
	o.key(name)
	*o = strconv.AppendUint(*o, n, 10)
}

func (o *object) decimal(name string, f float64) {
	o.key(name)
	*o = strconv.AppendFloat(*o, f, 'f', -1, 64)
}

func (o *object) boolean(name string, b bool) {
	o.key(name)
	*o = strconv.AppendBool(*o, b)
}

// text writes a text; bytes that are not UTF-8 become U+FFFD.
func (o *object) text(name, s string) {
	o.key(name)
	*o = append(*o, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			*o = append(*o, '\\', byte(r))
		case r < ' ':
			const hex = "0123456789abcdef"
			*o = append(*o, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		default:
			*o = utf8.AppendRune(*o, r)
		}
	}
	*o = append(*o, '"')
}

func (o *object) line() []byte { return append(*o, '}', '\n') }
