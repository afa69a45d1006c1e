package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// decode sets the fields of c that the YAML or JSON text names. It returns every problem, each with
// the path of its key. If text as a whole cannot be read, it returns the reason as unreadable.
func decode(text []byte, c *Config) (unreadable error, problems []error) {
	if n := documentsIn(string(text)); n > 1 {
		return fmt.Errorf("it holds %d YAML documents (--- separates them), of which only the "+
			"first would count: write all into one", n), nil
	}
	// Strict: a key given twice is an error.
	converted, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return err, nil
	}
	dec := json.NewDecoder(bytes.NewReader(converted))
	dec.UseNumber()
	var raw any
	if err := dec.Decode(&raw); err != nil {
		return err, nil
	}
	if raw == nil {
		return nil, nil // an empty file
	}
	return nil, decodeValue("", raw, reflect.ValueOf(c).Elem())
}

// problem describes what is wrong with the value of one key. name is the value if it is a DNS name
// with a port where an address is expected; otherwise "".
type problem struct{ key, text, name string }

func (p *problem) Error() string { return p.key + ": " + p.text }

func newProblem(key, format string, args ...any) error {
	return &problem{key: key, text: fmt.Sprintf(format, args...)}
}

// decodeValue sets v to raw. Each leaf is decoded by itself, so that one bad
// value does not hide the next.
func decodeValue(path string, raw any, v reflect.Value) []error {
	switch {
	case v.Kind() == reflect.Struct && v.Type() != prefixType && v.Type() != addrPortType:
		return decodeStruct(path, raw, v)
	case v.Kind() == reflect.Slice:
		list, ok := raw.([]any)
		if !ok {
			return []error{newProblem(path, "is %s, write a list of %s", kindOf(raw),
				wanted(v.Type().Elem()))}
		}
		// An empty list in the file must not become nil, because Outside distinguishes the two.
		v.Set(reflect.MakeSlice(v.Type(), 0, len(list)))
		var problems []error
		for i, r := range list {
			elem := reflect.New(v.Type().Elem()).Elem()
			problems = append(problems, decodeValue(fmt.Sprintf("%s[%d]", path, i), r, elem)...)
			v.Set(reflect.Append(v, elem))
		}
		return problems
	}

	text, err := json.Marshal(raw)
	if err == nil && raw != nil {
		err = json.Unmarshal(text, v.Addr().Interface())
	}

	if err != nil || raw == nil {
		v.SetZero()
		if name, ok := raw.(string); ok && v.Type() == addrPortType && isName(name) {
			return []error{&problem{path, name + namesRefused, name}}
		}
		return []error{newProblem(path, "%s is not %s", text, wanted(v.Type()))}
	}

	return nil
}

func decodeStruct(path string, raw any, v reflect.Value) []error {
	object, ok := raw.(map[string]any)
	if !ok {
		return []error{newProblem(orFile(path), "is %s, write keys and values: %s", kindOf(raw),
			strings.Join(keysOf(v.Type()), ", "))}
	}
	names := make([]string, 0, len(object))
	for name := range object {
		names = append(names, name)
	}
	slices.Sort(names)
	var problems []error
	for _, name := range names {
		i := slices.Index(keysOf(v.Type()), name)
		if i < 0 {
			problems = append(problems, newProblem(join(path, name),
				"unknown key; did you mean %s?", join(path, nearest(name, keysOf(v.Type())))))
			continue
		}
		problems = append(problems, decodeValue(join(path, name), object[name], v.Field(i))...)
	}
	return problems
}

var (
	prefixType   = reflect.TypeFor[netip.Prefix]()
	addrPortType = reflect.TypeFor[netip.AddrPort]()
)

// wanted describes in words what a value of t looks like.
func wanted(t reflect.Type) string {
	switch {
	case t == prefixType:
		return "a range such as 198.18.0.0/16 or fd42::/48"
	case t == addrPortType:
		return "an address with a port such as 192.0.2.1:6443 or [2001:db8::1]:6443"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Int:
		return "a whole number"
	case t.Kind() == reflect.Struct:
		return "keys and values: " + strings.Join(keysOf(t), ", ")
	}
	return "a text in quotes"
}

func kindOf(raw any) string {
	switch raw.(type) {
	case nil:
		return "empty"
	case map[string]any:
		return "keys and values"
	case []any:
		return "a list"
	}
	return fmt.Sprintf("%v", raw)
}

// keysOf returns the JSON name of each field of t, in order.
func keysOf(t reflect.Type) []string {
	var keys []string
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		keys = append(keys, name)
	}
	return keys
}

// Changed returns the outermost keys of the file in which a and b differ.
func Changed(a, b Config) []string {
	var keys []string
	va, vb := reflect.ValueOf(a), reflect.ValueOf(b)
	for i, key := range keysOf(va.Type()) {
		if !reflect.DeepEqual(va.Field(i).Interface(), vb.Field(i).Interface()) {
			keys = append(keys, key)
		}
	}
	return keys
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func orFile(path string) string {
	if path == "" {
		return "the whole file"
	}
	return path
}

// nearest returns the element of names with the smallest edit distance to name, ignoring case.
func nearest(name string, names []string) string {
	// The cost of an edit distance is the product of the lengths, so a long name is cut.
	name = strings.ToLower(name[:min(len(name), 64)])
	return slices.MinFunc(names, func(a, b string) int {
		return distance(name, strings.ToLower(a)) - distance(name, strings.ToLower(b))
	})
}

// distance returns the Levenshtein distance of a and b in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
