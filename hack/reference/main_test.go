package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReferenceIsCurrent(t *testing.T) {
	pages, err := render()
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
