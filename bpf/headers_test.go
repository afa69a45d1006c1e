package bpf

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/filetest"
)

var (
	includeLine = regexp.MustCompile(`(?m)^#include "([^"]+)"$`)
	mapLine     = regexp.MustCompile(`(?m)^\} (\w+) SEC\("\.maps"\);$`)
	comment     = regexp.MustCompile(`(?s)/\*.*?\*/`)
	// declaration matches a function without a body. Such a declaration would allow a circle that
	// no include shows.
	declaration = regexp.MustCompile(`(?m)^\w[^#{}=]*\([^{}=]*\);$`)
)

// headerFile is a header of lib.
type headerFile struct {
	includes, maps []string
	code           string // without comments
}

// headers returns the headers of lib by the name in an include.
func headers(t *testing.T) map[string]headerFile {
	t.Helper()
	all := make(map[string]headerFile)
	for _, file := range sources(t) {
		name, ok := strings.CutPrefix(file, "lib/")
		if !ok {
			continue
		}
		text := filetest.Read(t, file)
		code := comment.ReplaceAllString(string(text), "")
		h := headerFile{code: code}
		for _, m := range includeLine.FindAllStringSubmatch(code, -1) {
			h.includes = append(h.includes, m[1])
		}
		for _, m := range mapLine.FindAllStringSubmatch(code, -1) {
			h.maps = append(h.maps, m[1])
		}
		all[name] = h
	}
	return all
}

func TestHeadersHaveNoCircle(t *testing.T) {
	all := headers(t)
	done := make(map[string]bool)
	var walk func(name string, path []string)
	walk = func(name string, path []string) {
		if i := slices.Index(path, name); i >= 0 {
			t.Fatalf("headers include each other in a circle: %s",
				strings.Join(append(path[i:], name), " > "))
		}
		if done[name] {
			return
		}
		for _, next := range all[name].includes {
			walk(next, append(path, name))
		}
		done[name] = true
	}
	for name, h := range all {
		walk(name, nil)
		if d := declaration.FindString(h.code); d != "" {
			t.Errorf("%s declares a function of another header: %s", name, d)
		}
	}
}

// TestHeadersKeepTheirFloor checks the order of the folders: packet is below guard, and guard is
// below service.
func TestHeadersKeepTheirFloor(t *testing.T) {
	floors := map[string][]string{
		"packet":  {"packet"},
		"guard":   {"packet", "guard"},
		"service": {"packet", "guard", "service"},
	}
	all := headers(t)
	for name, h := range all {
		below, ok := floors[filepath.Dir(name)]
		if !ok {
			t.Errorf("%s is in none of the folders of lib", name)
		}
		for _, i := range h.includes {
			if _, ok := all[i]; !ok && i != "kernel.h" {
				t.Errorf("%s includes %s, which is not in lib", name, i)
			}
			if i != "kernel.h" && !slices.Contains(below, filepath.Dir(i)) {
				t.Errorf("%s includes %s, which is above it", name, i)
			}
		}
	}
}

func TestEachMapIsTouchedByOneHeader(t *testing.T) {
	all := headers(t)
	defined := make(map[string]string)
	for name, h := range all {
		for _, m := range h.maps {
			if other := defined[m]; other != "" {
				t.Errorf("map %s is defined in %s and %s", m, other, name)
			}
			defined[m] = name
		}
	}

	if len(defined) == 0 {
		t.Fatal("no header defines a map")
	}

	touched := make(map[string]string)
	for _, file := range sources(t) {
		text := filetest.Read(t, file)
		touched[strings.TrimPrefix(file, "lib/")] = comment.ReplaceAllString(string(text), "")
	}

	for m, home := range defined {
		word := regexp.MustCompile(`&` + m + `\b`)
		for name, code := range touched {
			if name != home && word.MatchString(code) {
				t.Errorf("%s touches map %s, which only %s may", name, m, home)
			}
		}
		if !word.MatchString(touched[home]) {
			t.Errorf("%s defines map %s and does not use it", home, m)
		}
	}
}
