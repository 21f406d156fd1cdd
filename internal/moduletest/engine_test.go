package moduletest

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/vektah/gqlparser/v2"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"
	"github.com/vektah/gqlparser/v2/validator/rules"
)

// standInEngine takes the place of a Dagger engine: it answers the queries of a module's function, runs nothing, and keeps what it was
// asked for. A query that the API of a real engine does not know is refused.
//
// What a function composes comes as a chain of calls, such as container.from(address: "debian").withExec(args: ["true"]). An object that is
// an argument stands in its chain as the chain that made it.
type standInEngine struct {
	schema *ast.Schema
	server *httptest.Server
	call   call
	answer func(chain string) (any, error) // of a chain that ends in a plain value; nil, nil for none in particular

	mu     sync.Mutex
	ids    map[string]string // the chain of each object whose id was asked for
	chains []string          // those that a value or an id was asked of, in their order
	result outcome
}

// call is the function that is called, on an object with the fields parent.
type call struct {
	object, function string
	parent, args     map[string]any
}

// outcome is what the function gave back: a value, or an error and the exit code that it carries.
type outcome struct {
	value    any
	err      string
	exitCode int
}

const schemaFile = "testdata/schema.graphqls"

func startEngine(t *testing.T, c call, answer func(string) (any, error)) *standInEngine {
	t.Helper()
	text, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	schema, err := gqlparser.LoadSchema(&ast.Source{Name: schemaFile, Input: string(text)})
	if err != nil {
		t.Fatal(err)
	}
	e := &standInEngine{schema: schema, call: c, answer: answer, ids: map[string]string{}}
	e.server = httptest.NewServer(e)
	t.Cleanup(e.server.Close)
	return e
}

// variables are those by which a function finds its engine.
func (e *standInEngine) variables() []string {
	_, port, _ := net.SplitHostPort(e.server.Listener.Addr().String())
	return []string{"DAGGER_SESSION_PORT=" + port, "DAGGER_SESSION_TOKEN=stand-in"}
}

// give has an id stand for the object that a chain makes.
func (e *standInEngine) give(id, chain string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ids[id] = chain
}

// asked gives the chains that a value or an id was asked of so far.
func (e *standInEngine) asked() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.chains)
}

// last is the last of them.
func (e *standInEngine) last() string {
	all := e.asked()
	return all[len(all)-1]
}

func (e *standInEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var query struct {
		Query     string         `json:"query"`
		Variables map[string]any `json:"variables"`
	}
	if err == nil {
		err = json.Unmarshal(body, &query)
	}
	var answer struct {
		Data   any           `json:"data,omitempty"`
		Errors gqlerror.List `json:"errors,omitempty"`
	}
	if err == nil {
		document, invalid := gqlparser.LoadQueryWithRules(e.schema, query.Query, rules.NewDefaultRules())
		if answer.Errors = invalid; len(invalid) == 0 {
			e.mu.Lock()
			answer.Data, err = e.object(document.Operations[0].SelectionSet, "", query.Variables)
			e.mu.Unlock()
		}
	}
	if err != nil {
		answer.Data, answer.Errors = nil, gqlerror.List{gqlerror.WrapIfUnwrapped(err)}
	}
	_ = json.NewEncoder(w).Encode(answer) // who is gone misses nothing
}

// object answers what is asked of the object that chain made.
func (e *standInEngine) object(set ast.SelectionSet, chain string, variables map[string]any) (map[string]any, error) {
	out := map[string]any{}
	for _, selection := range set {
		switch s := selection.(type) {
		case *ast.InlineFragment: // as in node(id: ...) { ... on Container { ... } }
			inner, err := e.object(s.SelectionSet, chain, variables)
			if err != nil {
				return nil, err
			}
			for k, v := range inner {
				out[k] = v
			}
		case *ast.Field:
			value, err := e.field(s, chain, variables)
			if err != nil {
				return nil, err
			}
			out[s.Alias] = value
		default:
			return nil, fmt.Errorf("the stand-in for the engine knows no %T", s)
		}
	}
	return out, nil
}

func (e *standInEngine) field(f *ast.Field, chain string, variables map[string]any) (any, error) {
	args := map[string]any{}
	var list []string
	for _, a := range f.Arguments {
		value, err := a.Value.Value(variables)
		if err != nil {
			return nil, err
		}
		args[a.Name] = value
		list = append(list, a.Name+": "+e.render(value))
	}
	slices.Sort(list)
	next := f.Name
	if len(list) > 0 {
		next += "(" + strings.Join(list, ", ") + ")"
	}
	if chain != "" {
		next = chain + "." + next
	}
	if f.Name == "node" { // the object goes on where it was made
		id, _ := args["id"].(string)
		made, known := e.ids[id]
		if !known {
			return nil, fmt.Errorf("the id %q was never given", id)
		}
		next = made
	}
	switch {
	case f.Definition.Type.Elem != nil && len(f.SelectionSet) > 0:
		return e.list(f, next, variables)
	case len(f.SelectionSet) > 0:
		return e.object(f.SelectionSet, next, variables)
	case f.Name == "id":
		return e.idOf(chain), nil
	case f.Name == "sync": // has all be done that leads to the object
		if _, err := e.answer(next); err != nil {
			return nil, err
		}
		return e.idOf(chain), nil
	}
	return e.value(f, next, args)
}

// list answers with the arguments of the call, the only list of objects that a function asks for here.
func (e *standInEngine) list(f *ast.Field, chain string, variables map[string]any) (any, error) {
	out := []any{}
	if f.Name != "inputArgs" {
		return out, nil
	}
	for name := range e.call.args {
		one, err := e.object(f.SelectionSet, chain+"["+name+"]", variables)
		if err != nil {
			return nil, err
		}
		out = append(out, one)
	}
	return out, nil
}

// value answers a plain value, and takes what the function gives back.
func (e *standInEngine) value(f *ast.Field, chain string, args map[string]any) (any, error) {
	name, isArg := strings.CutPrefix(chain, "currentFunctionCall.inputArgs[")
	name, _, _ = strings.Cut(name, "]")
	switch {
	case isArg && f.Name == "name":
		return name, nil
	case isArg && f.Name == "value":
		return marshal(e.call.args[name])
	case chain == "currentFunctionCall.name":
		return e.call.function, nil
	case chain == "currentFunctionCall.parentName":
		return e.call.object, nil
	case chain == "currentFunctionCall.parent":
		return marshal(e.call.parent)
	case strings.HasPrefix(chain, "currentFunctionCall.returnValue("):
		text, _ := args["value"].(string)
		return nil, json.Unmarshal([]byte(text), &e.result.value)
	case strings.HasPrefix(chain, "currentFunctionCall.returnError("):
		id, _ := args["error"].(string)
		e.result.err = e.ids[id]
		if _, code, carried := strings.Cut(e.result.err, `withValue(name: "exitCode", value: "`); carried {
			_, err := fmt.Sscanf(code, "%d", &e.result.exitCode)
			return nil, err
		}
		e.result.exitCode = 1 // what the CLI makes of an error that carries none
		return nil, nil
	}
	e.chains = append(e.chains, chain)
	answer, err := e.answer(chain)
	if answer != nil || err != nil {
		return answer, err
	}
	switch f.Definition.Type.Name() {
	case "Int", "Float":
		return 0, nil
	case "Boolean":
		return false, nil
	}
	if f.Definition.Type.Elem != nil {
		return []any{}, nil
	}
	return "", nil
}

// idOf gives the id of the object that chain made.
func (e *standInEngine) idOf(chain string) string {
	e.chains = append(e.chains, chain)
	for id, made := range e.ids {
		if made == chain {
			return id
		}
	}
	id := fmt.Sprintf("id-%d", len(e.ids)+1)
	e.ids[id] = chain
	return id
}

// render writes an argument as it is shown in a chain.
func (e *standInEngine) render(value any) string {
	switch v := value.(type) {
	case string:
		if made, ok := e.ids[v]; ok {
			return "{" + made + "}"
		}
		return fmt.Sprintf("%q", v)
	case []any:
		var parts []string
		for _, one := range v {
			parts = append(parts, e.render(one))
		}
		return "[" + strings.Join(parts, " ") + "]"
	}
	return fmt.Sprint(value)
}

func marshal(v any) (string, error) {
	data, err := json.Marshal(v)
	return string(data), err
}
