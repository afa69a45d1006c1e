package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
)

// A module that several programs have is in the bill of their image once. Packages of Debian are
// in it with their sums.
func TestBillOfAnImage(t *testing.T) {
	bills := make([]bill, 2)
	for i, name := range []string{"veil", "veild"} {
		bills[i] = bill{Metadata: metadata{component{Ref: name, Type: "application", Name: name}},
			Components:   []component{{Ref: "pkg:golang/a@v1"}},
			Dependencies: []dependency{{name, []string{"pkg:golang/a@v1"}}, {Ref: "pkg:golang/a@v1"}}}
	}
	got := imageBill(component{Ref: "image", Type: "container", Name: "image"}, "arm64", bills,
		[]debianPackage{{"libc6", "2.36-9+deb12u14", "abc"}})

	const libc = "pkg:deb/debian/libc6@2.36-9%2Bdeb12u14?arch=arm64"
	var refs []string
	for _, c := range got.Components {
		refs = append(refs, c.Ref)
		if c.Ref == libc && (c.Hashes[0].Content != "abc" || c.Version != "2.36-9+deb12u14") {
			t.Errorf("%+v", c)
		}
	}
	if diff := cmp.Diff([]string{libc, "pkg:golang/a@v1", "veil", "veild"}, refs); diff != "" {
		t.Error(diff)
	}
	want := []dependency{{"image", []string{"veil", "veild", libc}}, {Ref: "pkg:golang/a@v1"},
		{"veil", []string{"pkg:golang/a@v1"}}, {"veild", []string{"pkg:golang/a@v1"}}}
	if diff := cmp.Diff(want, got.Dependencies); diff != "" {
		t.Error(diff)
	}
}

func TestSizesAboveTheLimitAreRefused(t *testing.T) {
	committed := []byte(`{"a": 1000, "b": 1000}`)
	for name, tc := range map[string]struct {
		sizes map[string]int64
		want  string
	}{
		"as committed": {map[string]int64{"a": 1000, "b": 1000}, ""},
		"at the limit": {map[string]int64{"a": 1050}, ""},
		"smaller":      {map[string]int64{"a": 1}, ""},
		"larger":       {map[string]int64{"a": 1051, "b": 1000}, "a has 1051 bytes"},
		"new":          {map[string]int64{"c": 1}, "c has 1 bytes"},
	} {
		err := checkSizes(committed, tc.sizes)
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := checkSizes([]byte("{"), nil); err == nil {
		t.Error("a broken file of sizes")
	}
}

// The statement names each file, the commit and the packages, each once, and is the same each time.
func TestProvenance(t *testing.T) {
	dir := t.TempDir()
	filetest.Write(t, filepath.Join(dir, "veild-linux-amd64"), []byte("a program"), 0o755)
	libc := content{Debian: []debianPackage{{"libc6", "2", "abc"}}}
	built := map[string]description{"a": {Images: map[string]content{"arm64": libc}},
		"b": {Images: map[string]content{"arm64": libc, "amd64": libc}}}
	o := order{version: "v0.1.0", name: "registry.example/kubeveil"}
	var texts [2][]byte
	for i := range texts {
		errtest.Must(t, writeProvenance(o, dir, summary{Commit: "c0ffee", Go: "go1.26.8"}, built))
		texts[i] = filetest.Read(t, filepath.Join(dir, provenance))
		errtest.Must(t, os.Remove(filepath.Join(dir, provenance)))
	}
	if !bytes.Equal(texts[0], texts[1]) {
		t.Errorf("two statements differ:\n%s\n%s", texts[0], texts[1])
	}

	var s statement
	errtest.Must(t, json.Unmarshal(texts[0], &s))
	sum, err := sumOf(filepath.Join(dir, "veild-linux-amd64"))
	errtest.Must(t, err)
	d := s.Predicate.BuildDefinition
	if s.Type != "https://in-toto.io/Statement/v1" ||
		s.PredicateType != "https://slsa.dev/provenance/v1" {
		t.Errorf("%s is no in-toto statement with SLSA provenance v1", texts[0])
	}
	if len(s.Subject) != 1 || s.Subject[0].Digest["sha256"] != sum ||
		d.Resolved[0].Digest["gitCommit"] != "c0ffee" || len(d.Resolved) != 4 ||
		d.Resolved[3].URI != "pkg:deb/debian/libc6@2?arch=arm64" {
		t.Errorf("%s", texts[0])
	}
}
