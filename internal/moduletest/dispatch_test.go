package moduletest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func parse(t *testing.T, file string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// functions are those that the module's source offers, as Object.Function(arguments), sorted. The constructor is Object.
func functions(t *testing.T, file string) []string {
	var list []string
	for _, d := range parse(t, file).Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || !f.Name.IsExported() {
			continue
		}
		name := "Parity."
		if f.Recv != nil {
			name = f.Recv.List[0].Type.(*ast.StarExpr).X.(*ast.Ident).Name + "." + f.Name.Name
		}
		var args []string
		for _, field := range f.Type.Params.List {
			for _, arg := range field.Names {
				if arg.Name != "ctx" {
					args = append(args, arg.Name)
				}
			}
		}
		list = append(list, signature(name, args))
	}
	slices.Sort(list)
	return list
}

// dispatched are the functions that the generated program calls, in the form of functions.
func dispatched(t *testing.T, file string) []string {
	var list []string
	for _, d := range parse(t, file).Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Name.Name == "invoke" {
			eachCase(f.Body, func(object string, body ast.Node) {
				eachCase(body, func(function string, body ast.Node) {
					list = append(list, signature(object+"."+function, arguments(body)))
				})
			})
		}
	}
	slices.Sort(list)
	return list
}

func signature(name string, args []string) string {
	slices.Sort(args)
	return name + "(" + strings.Join(slices.Compact(args), ", ") + ")"
}

// eachCase calls do with each case of the outermost switches in n that stands for a literal string.
func eachCase(n ast.Node, do func(name string, body ast.Node)) {
	ast.Inspect(n, func(n ast.Node) bool {
		c, ok := n.(*ast.CaseClause)
		if !ok {
			return true
		}
		for _, value := range c.List {
			if literal, ok := value.(*ast.BasicLit); ok {
				name, _ := strconv.Unquote(literal.Value) // the parser has taken it
				do(name, &ast.BlockStmt{List: c.Body})
			}
		}
		return false
	})
}

// arguments are the keys with which the generated code looks into its input.
func arguments(body ast.Node) []string {
	var list []string
	ast.Inspect(body, func(n ast.Node) bool {
		if index, ok := n.(*ast.IndexExpr); ok {
			if input, ok := index.X.(*ast.Ident); ok && input.Name == "inputArgs" {
				name, _ := strconv.Unquote(index.Index.(*ast.BasicLit).Value)
				list = append(list, name)
			}
		}
		return true
	})
	return list
}

// Else it was not generated again after a change of main.go.
func TestTheGeneratedDispatchHasTheFunctionsOfTheSource(t *testing.T) {
	want, got := functions(t, "../../main.go"), dispatched(t, "../../dagger.gen.go")
	if len(want) == 0 || !slices.Equal(got, want) {
		t.Errorf("main.go has\n%s\nand dagger.gen.go has\n%s\nrun `dagger develop`", strings.Join(want, "\n"), strings.Join(got, "\n"))
	}
}
