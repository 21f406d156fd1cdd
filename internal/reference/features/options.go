package features

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// option is what a Feature says of one of its options.
type option struct {
	Type    string   // "string" or "boolean"
	Enum    []string // the values that there are; empty: any. Those of "proposals" are for people.
	Default value
}

// value is the value of an option: a string, or a boolean as the string that an environment variable has.
type value struct {
	text          string
	isBool, isSet bool
}

// UnmarshalJSON implements json.Unmarshaler.
func (v *value) UnmarshalJSON(text []byte) error {
	var any any
	if err := json.Unmarshal(text, &any); err != nil {
		return err
	}
	switch t := any.(type) {
	case string:
		*v = value{text: t, isSet: true}
	case bool:
		*v = value{text: strconv.FormatBool(t), isBool: true, isSet: true}
	default:
		return fmt.Errorf("expected a string or a boolean, seen %s", text)
	}
	return nil
}

// parseOptions reads what devcontainer.json gives a Feature: an object, or a string that is the option "version".
func parseOptions(text json.RawMessage) (map[string]value, error) {
	var version string
	if json.Unmarshal(text, &version) == nil && string(text) != "null" {
		return map[string]value{"version": {text: version, isSet: true}}, nil
	}
	given := map[string]value{}
	if err := json.Unmarshal(text, &given); err != nil {
		return nil, fmt.Errorf("expected an object with options, or a version: %w", err)
	}
	if given == nil {
		return nil, errors.New("expected an object with options, or a version; seen null")
	}
	return given, nil
}

// resolve gives the environment variables of a Feature's options: those that are given, and the defaults of the others.
func (m metadata) resolve(given map[string]value) (map[string]string, error) {
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if _, known := m.Options[name]; !known {
			return nil, fmt.Errorf("unknown option %q: %s", name, m.optionNames())
		}
	}
	env := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(m.Options)) {
		o := m.Options[name]
		v := o.Default
		if own, ok := given[name]; ok {
			v = own
		}
		if !v.isSet {
			continue // neither given nor by default
		}
		if err := o.check(v); err != nil {
			return nil, fmt.Errorf("the option %q: %w", name, err)
		}
		env[environmentName(name)] = v.text
	}
	return env, nil
}

func (m metadata) optionNames() string {
	if len(m.Options) == 0 {
		return "the Feature has none"
	}
	return "expected one of " + strings.Join(slices.Sorted(maps.Keys(m.Options)), ", ")
}

func (o option) check(v value) error {
	switch {
	case o.Type == "boolean" && v.text != "true" && v.text != "false":
		return fmt.Errorf("expected true or false, seen %q", v.text)
	case o.Type == "string" && v.isBool:
		return fmt.Errorf("expected a string, seen %s", v.text)
	case o.Type != "boolean" && o.Type != "string":
		return fmt.Errorf("the Feature's own file: expected the type string or boolean, seen %q", o.Type)
	case len(o.Enum) > 0 && !slices.Contains(o.Enum, v.text):
		return fmt.Errorf("expected one of %s; seen %q", strings.Join(o.Enum, ", "), v.text)
	case strings.Contains(v.text, "\x00"):
		return errors.New("expected text, seen a zero byte")
	}
	return nil
}

var (
	notWord       = regexp.MustCompile(`[^A-Za-z0-9_]`)
	leadingDigits = regexp.MustCompile(`^[0-9_]+`)
)

// environmentName is the name of the environment variable of an option, as the specification has it.
func environmentName(option string) string {
	return strings.ToUpper(leadingDigits.ReplaceAllString(notWord.ReplaceAllString(option, "_"), "_"))
}
