// Command list prints the subtests of the upstream's conformance tests, TEST/SUBTEST a line, as
// `go test` names them. It reads the upstream's source, because a test binary lists no subtests.
//
// Usage:
//
//	go run ./list DIR
//
// DIR is the folder conformance/tests of the upstream's module.
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/network-policy-api/conformance/tests"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go run ./list DIR")
		os.Exit(2)
	}
	specs, err := list(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "list:", err)
		os.Exit(1)
	}
	fmt.Println(strings.Join(specs, "\n"))
}

// list returns the subtests of all registered tests, in the order in which the upstream runs them.
// It returns an error when a test has no subtests, or a name is not a literal.
func list(dir string) ([]string, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	subtests := map[string][]string{}
	for _, path := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return nil, err
		}
		for _, d := range file.Decls {
			if err := read(d, subtests); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
		}
	}

	var specs []string
	for _, test := range tests.ConformanceTests {
		names := subtests[test.ShortName]
		if len(names) == 0 {
			return nil, fmt.Errorf("%s has no subtest in %s", test.ShortName, dir)
		}
		for _, name := range names {
			specs = append(specs, test.ShortName+"/"+strings.ReplaceAll(name, " ", "_"))
		}
	}

	if sorted := slices.Sorted(slices.Values(specs)); len(slices.Compact(sorted)) != len(specs) {
		return nil, fmt.Errorf("two subtests in %s have one name", dir)
	}
	return specs, nil
}

// read adds the name of each t.Run in a declaration to the subtests of its ShortName.
func read(d ast.Decl, subtests map[string][]string) (err error) {
	var test string
	ast.Inspect(d, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.KeyValueExpr:
			if key, ok := n.Key.(*ast.Ident); ok && key.Name == "ShortName" {
				test, err = text(n.Value)
			}
		case *ast.CallExpr:
			if call, ok := n.Fun.(*ast.SelectorExpr); !ok || call.Sel.Name != "Run" ||
				len(n.Args) == 0 {
				return err == nil
			}
			var name string
			if name, err = text(n.Args[0]); err == nil {
				subtests[test] = append(subtests[test], name)
			}
		}
		return err == nil
	})
	return err
}

// text returns the value of a string literal.
func text(e ast.Expr) (string, error) {
	literal, ok := e.(*ast.BasicLit)
	if !ok || literal.Kind != token.STRING {
		return "", fmt.Errorf("a name is not a string literal but a %T", e)
	}
	return strconv.Unquote(literal.Value)
}
