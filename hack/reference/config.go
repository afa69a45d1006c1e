package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"

	"github.com/kubeveil/kubeveil/csi/driver"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/service"
)

// configSource is the file with the list of flags.
const configSource = "pkg/config/config.go"

// configKeys returns the table cells with the flag and the default of each key of veild's
// configuration, by key.
func configKeys() (map[string]string, error) {
	flags, err := configFlags()
	if err != nil {
		return nil, err
	}

	defaults := config.Default()
	limits := service.DefaultLimits
	defaults.Services.Limits = config.ServiceLimits{
		Frontends: int(limits.Frontends), BackendSlots: int(limits.BackendSlots),
		SourceRanges: int(limits.SourceRanges),
	}
	keys := map[string]string{}
	walk("", reflect.ValueOf(defaults), func(key string, value reflect.Value) {
		flag := "–"
		if name, ok := flags[key]; ok {
			flag = "`--" + name + "`"
		}
		keys[key] = fmt.Sprintf("| %s | %s", flag, shown(value))
	})
	return keys, nil
}

// walk calls leaf with each key below v, and its value.
func walk(prefix string, v reflect.Value, leaf func(key string, value reflect.Value)) {
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		field := v.Field(i)
		if field.Kind() == reflect.Struct {
			walk(prefix+name+".", field, leaf)
		} else {
			leaf(prefix+name, field)
		}
	}
}

// shown returns the text of a default value for a page.
func shown(v reflect.Value) string {
	if v.IsZero() && v.Kind() != reflect.Bool && v.Kind() != reflect.Int {
		return "none"
	}
	text := fmt.Sprint(v.Interface())
	if v.Kind() == reflect.Slice {
		text = strings.ReplaceAll(text, " ", ", ")
	}
	return "`" + text + "`"
}

// configFlags returns the flag for each key of the configuration, from the source of package
// config.
func configFlags() (map[string]string, error) {
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, configSource), nil, 0)
	if err != nil {
		return nil, err
	}

	flags := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		list, ok := n.(*ast.ValueSpec)
		if !ok || list.Names[0].Name != "flags" || len(list.Values) == 0 {
			return true
		}
		for _, e := range list.Values[0].(*ast.CompositeLit).Elts {
			fields := e.(*ast.CompositeLit).Elts
			flags[text(fields[1])] = text(fields[0])
		}
		return false
	})
	if len(flags) == 0 {
		return nil, fmt.Errorf("%s has no list named flags: mend configFlags", configSource)
	}
	return flags, nil
}

// text returns the value of a string literal. It returns "" for other expressions.
func text(e ast.Expr) string {
	if lit, ok := e.(*ast.BasicLit); ok {
		s, _ := strconv.Unquote(lit.Value)
		return s
	}
	return ""
}

// classParameters returns the table cell with the values of each StorageClass parameter, by
// parameter. The default is first.
func classParameters() map[string]string {
	parameters := map[string]string{}
	for name, values := range maps.All(driver.ParameterValues()) {
		parameters[name] = "| `" + strings.Join(values, "`, `") + "`"
	}
	return parameters
}
