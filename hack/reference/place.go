package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// placeLink matches what place returns. Its groups are the name and the folder.
var placeLink = regexp.MustCompile("`([\\w.]+)` in \\[([\\w/-]+)/[\\w.-]+\\]\\([^)]+\\)")

// places returns text with current links to the files of names.
func places(text string) (string, error) {
	var errs []error
	text = placeLink.ReplaceAllStringFunc(text, func(old string) string {
		m := placeLink.FindStringSubmatch(old)
		current, err := place(m[2], m[1])
		errs = append(errs, err)
		return current
	})
	return text, errors.Join(errs...)
}

// place returns the name of a function, method (Type.Method), type, constant or variable, with a
// link to the file in the folder that declares it. It returns an error if no file declares it.
func place(folder, name string) (string, error) {
	file, err := declares(folder, name)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("`%s` in [%s](../%s)", name, file, file), nil
}

// declares returns the path, from the root of the tree, of the Go or C file in a folder that
// declares a name.
func declares(folder, name string) (string, error) {
	files, err := filepath.Glob(filepath.Join(root, folder, "*.*"))
	if err != nil {
		return "", err
	}
	for _, f := range files {
		found := false
		switch {
		case strings.HasSuffix(f, "_test.go"):
		case path.Ext(f) == ".go":
			found, err = goDeclares(f, name)
		case path.Ext(f) == ".c" || path.Ext(f) == ".h":
			found, err = cDeclares(f, name)
		}
		if err != nil {
			return "", err
		}
		if found {
			return path.Join(folder, filepath.Base(f)), nil
		}
	}
	return "", fmt.Errorf("%s has no %s: write in %s where it is now", folder, name, architecture)
}

// goDeclares reports whether a Go file declares a name at top level.
func goDeclares(file, name string) (bool, error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		return false, err
	}
	for _, d := range parsed.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if receiver(d)+d.Name.Name == name {
				return true, nil
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if declared(s, name) {
					return true, nil
				}
			}
		}
	}
	return false, nil
}

// receiver returns the type of a method's receiver followed by a dot, or "" for a function.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	t := f.Recv.List[0].Type
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	if generic, ok := t.(*ast.IndexExpr); ok {
		t = generic.X
	}
	if id, ok := t.(*ast.Ident); ok {
		return id.Name + "."
	}
	return ""
}

func declared(s ast.Spec, name string) bool {
	switch s := s.(type) {
	case *ast.TypeSpec:
		return s.Name.Name == name
	case *ast.ValueSpec:
		for _, n := range s.Names {
			if n.Name == name {
				return true
			}
		}
	}
	return false
}

// cDeclares reports whether a C file defines a function or a BPF map of that name.
func cDeclares(file, name string) (bool, error) {
	text, err := os.ReadFile(file)
	q := regexp.QuoteMeta(name)
	defined := regexp.MustCompile(`(?m)^(?:static |int )[^;{]*\b` + q + `\(|^\} ` + q + ` SEC`)
	return defined.Match(text), err
}
