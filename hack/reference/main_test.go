package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/kubeveil/kubeveil/hack/deptest"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// bin holds the programs.
var bin programs

func TestMain(m *testing.M) {
	os.Exit(withPrograms(m))
}

// withPrograms builds the programs once for all tests. They stay, and the next run links those that
// have changed.
func withPrograms(m *testing.M) int {
	dir, err := filepath.Abs(filepath.Join(root, "out/reference"))
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err == nil {
		bin = programs(dir)
		err = bin.build()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

func TestReferenceIsCurrent(t *testing.T) {
	pages, err := render(bin)
	errtest.Must(t, err)
	if len(pages) < 4 || pages[architecture] == "" {
		t.Errorf("%d pages", len(pages))
	}
	for name, want := range pages {
		got, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Error(err)
		} else if string(got) != want {
			t.Errorf("%s is not what the code says: run go generate ./hack/reference", name)
		}
		for i, text := range strings.Split(want, "```") {
			if help, ok := strings.CutPrefix(text, "text\n"); ok && i%2 == 1 {
				checkWidth(t, name, help)
			}
		}
	}
}

func TestRowsExplainEachNameOnce(t *testing.T) {
	r := rows{"mtu": "| `--mtu` | `0`", "node": "| `--node` | `vm-7`"}
	const mtu, node = "| `mtu` | `-m` | none | Bytes. |\n", "| `node` | – | host name | Name. |\n"

	const want = "| `node` | `--node` | host name | Name. |\n| `mtu` | `--mtu` | `0` | Bytes. |"
	if got, err := r.refresh(nil, node+mtu); err != nil || got != want {
		t.Errorf("%s, %v", got, err)
	}
	for name, table := range map[string]string{"node": mtu, "mtu": mtu + node + mtu,
		"nonsense": mtu + node + "| `nonsense` | – | none | – |\n"} {
		if _, err := r.refresh(nil, table); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s in %s: %v", name, table, err)
		}
	}
}

func TestPlacesAreFound(t *testing.T) {
	for name, c := range map[string]struct{ folder, name, want string }{
		"function":        {"hack/reference", "place", "hack/reference/place.go"},
		"method":          {"hack/reference", "rows.refresh", "hack/reference/main.go"},
		"type":            {"hack/reference", "rows", "hack/reference/main.go"},
		"constant":        {"hack/reference", "architecture", "hack/reference/main.go"},
		"function of C":   {"bpf/lib/packet", "drop", "bpf/lib/packet/drop.h"},
		"map of C":        {"bpf/lib/packet", "drops", "bpf/lib/packet/drop.h"},
		"program of C":    {"bpf/progs", "guard_egress", "bpf/progs/guard_egress.c"},
		"name of a test":  {"hack/reference", "TestPlacesAreFound", ""},
		"only a receiver": {"hack/reference", "rows.place", ""},
		"call in C":       {"bpf/lib/packet", "bpf_map_lookup_elem", ""},
		"no folder":       {"hack/weather", "place", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := place(c.folder, c.name)
			want := ""
			if c.want != "" {
				want = "`" + c.name + "` in [" + c.want + "](../" + c.want + ")"
			}
			if got != want || (err == nil) != (c.want != "") {
				t.Errorf("got %q, %v, want %q", got, err, want)
			}
		})
	}
}

func TestSentencesOfPackages(t *testing.T) {
	for folder, want := range map[string]string{
		"hack/reference": "writes docs/reference and docs/architecture.md",
		"docs/design":    "",
	} {
		got, err := sentenceOf(folder)
		if err != nil || !strings.HasPrefix(got, want) || (got == "") != (want == "") {
			t.Errorf("%s: got %q, %v, want %q", folder, got, err, want)
		}
	}
}

func TestLongSentencesAreSplit(t *testing.T) {
	many := strings.Repeat("word ", 24)
	for in, want := range map[string]string{
		"holds numbers: the ports.":   "holds numbers: the ports",
		"holds: " + many + "a|b":      "holds. W" + many[1:] + `a\|b`,
		"holds " + many + "in clear.": "holds " + many + "in clear",
	} {
		if got := short(in); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// Each floor has its packages, and no line is wider than a page.
func TestFloorsAreDrawn(t *testing.T) {
	for room, layers := range deptest.Layers {
		drawing, err := floors(room)
		errtest.Must(t, err)
		fields := strings.Fields(drawing)
		for _, l := range layers {
			for _, p := range l.Packages {
				if !slices.Contains(fields, strings.TrimPrefix(p, room+"/")) {
					t.Errorf("%s is not drawn", p)
				}
			}
		}
		for line := range strings.Lines(drawing) {
			if n := utf8.RuneCountInString(line); n > 101 {
				t.Errorf("%d columns: %s", n-1, line)
			}
		}
	}
	if _, err := floors("docs"); err == nil {
		t.Error("docs has floors")
	}
}
