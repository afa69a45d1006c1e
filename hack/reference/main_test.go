package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// bin holds the programs.
var bin programs

func TestMain(m *testing.M) {
	os.Exit(withPrograms(m))
}

// withPrograms builds the programs once for all tests.
func withPrograms(m *testing.M) int {
	dir, err := os.MkdirTemp("", "kubeveil-reference")
	if err == nil {
		defer os.RemoveAll(dir)
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
	if err != nil {
		t.Fatal(err)
	}
	if len(pages) < 4 {
		t.Errorf("%d pages", len(pages))
	}
	for name, want := range pages {
		got, err := os.ReadFile(filepath.Join(root, folder, name))
		if err != nil {
			t.Error(err)
		} else if string(got) != want {
			t.Errorf("%s/%s is not what the code says: run go generate ./hack/reference", folder,
				name)
		}
		for i, text := range strings.Split(want, "```") {
			if help, ok := strings.CutPrefix(text, "text\n"); ok && i%2 == 1 {
				checkWidth(t, name, help)
			}
		}
	}
}

func TestRowsAskForEachNameOnce(t *testing.T) {
	r := newRows(map[string]string{"mtu": "| `-mtu` | `0`", "node": "| `-node` | `vm-7`"})

	if got, err := r.row("mtu", "Bytes."); err != nil ||
		got != "| `mtu` | `-mtu` | `0` | Bytes. |" {
		t.Errorf("%s, %v", got, err)
	}
	if err := r.complete(); err == nil || !strings.Contains(err.Error(), "node") {
		t.Errorf("a name without a row: %v", err)
	}
	if got, err := r.row("node", "Name.", "host name"); err != nil ||
		got != "| `node` | `-node` | host name | Name. |" {
		t.Errorf("%s, %v", got, err)
	}
	if err := r.complete(); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"mtu", "nonsense"} {
		if _, err := r.row(name, ""); err == nil {
			t.Errorf("a row for %s is no error", name)
		}
	}
}
