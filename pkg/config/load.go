package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"reflect"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// maxFile bounds the files that Load reads, bytes.
const maxFile = 1 << 20

// Load returns the defaults with the values of the configuration file at path, which is YAML or
// JSON. It reads ranges that are not set from the file KubeadmConfig and validates the result. An
// empty path means that there is no file. The error joins every problem found.
func Load(path string) (Config, error) { return load(path, nil) }

// Flags are command-line flags that override the configuration file.
type Flags struct {
	// File is the configuration file, flag --config.
	File  string
	given []givenFlag
}

type givenFlag struct{ name, path, value string }

// RegisterFlags adds the flags to fs. After fs.Parse, the caller calls Load of the result.
func RegisterFlags(fs *pflag.FlagSet) *Flags {
	f := &Flags{}
	fs.StringVar(&f.File, "config", "", "configuration `file`, YAML or JSON")
	for _, d := range flags {
		set := func(value string) error {
			f.given = append(f.given, givenFlag{d.name, d.path, value})
			return nil
		}
		if fieldAt(&Config{}, d.path).Kind() == reflect.Bool {
			fs.BoolFunc(d.name, d.usage, set)
		} else {
			fs.Func(d.name, d.usage, set)
		}
	}
	return f
}

// Load is like the function Load for the file of --config. Flags that were given override the file.
func (f *Flags) Load() (Config, error) { return load(f.File, f.given) }

func load(path string, given []givenFlag) (Config, error) {
	var text []byte
	if path != "" {
		var err error
		if text, err = readFile(path); err != nil {
			return Default(), fmt.Errorf("configuration: %w", err)
		}
	}
	return assemble(path, text, given, readFile)
}

// Parse is Load for callers that have the content of the files. It returns the configuration that
// veild would have on node, and the error with which veild would refuse it. kubeadm is the content
// of the file KubeadmConfig; nil means that the file does not exist.
func Parse(node string, text, kubeadm []byte) (Config, error) {
	return assemble("configuration", text, []givenFlag{{"node", "node", node}},
		func(path string) ([]byte, error) {
			if kubeadm == nil {
				return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
			}
			return kubeadm, nil
		})
}

// assemble makes the configuration from text, the flags that override it, and the file
// KubeadmConfig, which it reads with read. name is the name of the configuration file, for errors.
func assemble(name string, text []byte, given []givenFlag,
	read func(path string) ([]byte, error)) (Config, error) {
	c := Default()
	unreadable, bad := decode(text, &c)
	if unreadable != nil {
		return c, fmt.Errorf("%s: %w", name, unreadable)
	}

	var problems []error
	suggestAddrs(bad)
	for _, err := range bad {
		problems = append(problems, fmt.Errorf("%s: %w", name, err))
	}

	for _, g := range given {
		wrong := g.apply(&c)
		suggestAddrs(wrong)
		for _, err := range wrong {
			problems = append(problems, fmt.Errorf("flag --%s: %w", g.name, err))
		}
	}

	if c.KubeadmConfig != "" {
		if err := c.fillFromKubeadm(read); err != nil {
			problems = append(problems, err)
		}
	}

	// A value that could not be read is zero now. Do not report it twice.
	unread := map[string]bool{}
	for _, err := range problems {
		var p *problem
		if errors.As(err, &p) {
			unread[p.key] = true
		}
	}

	for _, err := range c.problems() {
		var p *problem
		if !errors.As(err, &p) || !unread[p.key] {
			problems = append(problems, err)
		}
	}

	return c, errors.Join(problems...)
}

// apply sets one flag. Its errors do not name the flag.
func (g givenFlag) apply(c *Config) []error {
	v := fieldAt(c, g.path)
	var raw any = g.value
	switch v.Kind() {
	case reflect.Bool:
		b, err := strconv.ParseBool(g.value)
		if err != nil {
			return []error{newProblem(g.path, "%q is not true or false", g.value)}
		}
		raw = b
	case reflect.Int:
		n, err := strconv.Atoi(g.value)
		if err != nil {
			return []error{newProblem(g.path, "%q is not a whole number", g.value)}
		}
		raw = n
	case reflect.Slice:
		raw = splitList(g.value)
	}
	return decodeValue(g.path, raw, v)
}

// splitList splits s at commas. It leaves out empty parts and never returns nil.
func splitList(s string) []any {
	list := []any{}
	for part := range strings.SplitSeq(s, ",") {
		if part = strings.TrimSpace(part); part != "" {
			list = append(list, part)
		}
	}
	return list
}

// fieldAt returns the field of c at a path of keys separated by dots. The path must exist.
func fieldAt(c *Config, path string) reflect.Value {
	v := reflect.ValueOf(c).Elem()
	for key := range strings.SplitSeq(path, ".") {
		for i, k := range keysOf(v.Type()) {
			if k == key {
				v = v.Field(i)
				break
			}
		}
	}
	return v
}

// readFile reads a whole file of at most maxFile bytes.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxFile {
		return nil, fmt.Errorf("%s is larger than %d bytes; is it the right file?", path, maxFile)
	}
	return text, nil
}
