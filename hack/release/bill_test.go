package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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

// checkBills compares the bills in the folder of a release with what Go's tools read from its
// programs, and with debian.lock.
func checkBills(t *testing.T, dir string) {
	t.Helper()
	for _, arch := range arches {
		image := readBill(t, filepath.Join(dir, "kubeveil-linux-"+arch+billSuffix))
		for _, p := range programs {
			file := p + "-linux-" + arch
			b := readBill(t, filepath.Join(dir, file+billSuffix))
			want := modulesOf(t, filepath.Join(dir, file))
			if diff := cmp.Diff(want, modules(b)); diff != "" {
				t.Errorf("%s: go version -m and the bill (-want +got):\n%s", file, diff)
			}
			sum, err := sumOf(filepath.Join(dir, file))
			errtest.Must(t, err)
			if c := b.Metadata.Component; c.Hashes[0].Content != sum || c.Version != "v0.0.1" {
				t.Errorf("%s: component %+v", file, c)
			}
			for _, m := range want {
				if !slices.Contains(modules(image), m) {
					t.Errorf("the image for %s lacks %s of %s", arch, m, p)
				}
			}
		}

		var got, locked []string
		for _, name := range images {
			for _, c := range readBill(t, filepath.Join(dir,
				name+"-linux-"+arch+billSuffix)).Components {
				if strings.HasPrefix(c.PURL, "pkg:deb/") {
					got = append(got, strings.Join([]string{arch, c.Name, c.Version,
						c.Hashes[0].Content}, " "))
				}
			}
		}
		for line := range strings.Lines(string(filetest.Read(t, "../image/debian.lock"))) {
			if f := strings.Fields(line); f[0] == arch {
				locked = append(locked, strings.Join(f[:4], " "))
			}
		}
		slices.Sort(got)
		slices.Sort(locked)
		if diff := cmp.Diff(locked, slices.Compact(got)); diff != "" {
			t.Errorf("debian.lock and the bills for %s (-want +got):\n%s", arch, diff)
		}
	}
}

func readBill(t *testing.T, path string) (b bill) {
	t.Helper()
	errtest.Must(t, json.Unmarshal(filetest.Read(t, path), &b))
	return b
}

// modules returns the modules in a bill as PATH VERSION, without the standard library.
func modules(b bill) (all []string) {
	for _, c := range b.Components {
		if c.Name != "std" && strings.HasPrefix(c.PURL, "pkg:golang/") && c.Type == "library" {
			all = append(all, c.Name+" "+c.Version)
		}
	}
	slices.Sort(all)
	return all
}

// modulesOf returns the modules that `go version -m` prints for a program, as PATH VERSION.
func modulesOf(t *testing.T, program string) (all []string) {
	t.Helper()
	out, err := exec.Command("go", "version", "-m", program).Output()
	errtest.Must(t, err)
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) >= 3 && f[0] == "dep" {
			all = append(all, f[1]+" "+f[2])
		}
	}
	slices.Sort(all)
	return all
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
	if len(s.Subject) != 1 || s.Subject[0].Digest["sha256"] != sum ||
		d.Resolved[0].Digest["gitCommit"] != "c0ffee" || len(d.Resolved) != 4 ||
		d.Resolved[3].URI != "pkg:deb/debian/libc6@2?arch=arm64" {
		t.Errorf("%s", texts[0])
	}
}
