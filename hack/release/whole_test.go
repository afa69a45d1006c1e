package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// wholeEnv enables the test that makes whole releases. If its value is "cold", the second one is
// built with an empty cache.
const wholeEnv = "KUBEVEIL_RELEASE"

// Two clones of this commit, in two folders, give the same release. verify.sh finds each change of
// it, each program and image is for its architecture, and each SBOM names what is in them.
func TestTwoBuildsAreEqual(t *testing.T) {
	how := os.Getenv(wholeEnv)
	if how == "" {
		nettest.Skip(t, nettest.Short, "set "+wholeEnv+"=1 to make whole releases")
	}
	key := newKey(t)
	var sums [2][]byte
	var dir string
	for i := range sums {
		tree := filepath.Join(t.TempDir(), strings.Repeat("deeper/", i)+"tree")
		run(t, "", "git", "clone", "-q", "--no-hardlinks", "../..", tree)
		run(t, tree, "git", "tag", "v0.0.1")
		c := exec.Command("make", "release", "VERSION=v0.0.1", "KEY="+key,
			"NAME=registry.example/kubeveil")
		c.Dir, c.Env = tree, os.Environ()
		if i == 1 && how == "cold" {
			c.Env = append(c.Env, "GOCACHE="+t.TempDir())
		}
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", c, err, out)
		}
		dir = filepath.Join(tree, "out/release/v0.0.1")
		sums[i] = filetest.Read(t, filepath.Join(dir, sumsFile))
	}
	if !bytes.Equal(sums[0], sums[1]) {
		t.Errorf("two builds differ:\n%s\n%s", sums[0], sums[1])
	}
	t.Logf("%s:\n%s", dir, sums[1])

	checkFolder(t, dir, key+".pub")
	for _, p := range programs {
		for _, arch := range arches {
			program := filetest.Read(t, filepath.Join(dir, p+"-linux-"+arch))
			checkMachine(t, p, arch, program)
			checkProgramBill(t, filepath.Join(dir, p+"-linux-"+arch))
		}
	}
	checkTools(t, dir)
	checkDescription(t, dir, string(sums[1]))
	for _, image := range images {
		checkImages(t, dir, image)
	}
}

// checkTools checks that veilctl uses the image of the tools of its own release.
func checkTools(t *testing.T, dir string) {
	t.Helper()
	for _, verb := range []string{"connectivity", "bench"} {
		out, err := exec.Command(filepath.Join(dir, "veilctl-linux-"+runtime.GOARCH), verb,
			"-h").CombinedOutput()
		if err != nil || !strings.Contains(string(out),
			`(default "registry.example/kubeveil-tools:v0.0.1")`) {
			t.Errorf("veilctl %s -h: %v:\n%s", verb, err, out)
		}
	}
}

// checkDescription checks that the subjects of the provenance are the files of the sums but itself,
// that it names the commit, and that the release has each program and image whose size is
// committed.
func checkDescription(t *testing.T, dir, sums string) {
	t.Helper()
	var s statement
	text := filetest.Read(t, filepath.Join(dir, provenance))
	errtest.Must(t, json.Unmarshal(text, &s))
	want, subjects := "", ""
	for line := range strings.Lines(sums) {
		if !strings.HasSuffix(line, "  "+provenance+"\n") {
			want += line
		}
	}
	for _, r := range s.Subject {
		subjects += r.Digest["sha256"] + "  " + r.Name + "\n"
	}
	if diff := cmp.Diff(want, subjects); diff != "" {
		t.Errorf("sums and subjects of the provenance (-want +got):\n%s", diff)
	}

	var about summary
	errtest.Must(t, json.Unmarshal(filetest.Read(t, filepath.Join(dir, "release.json")), &about))
	resolved := s.Predicate.BuildDefinition.Resolved
	if commit := resolved[0].Digest["gitCommit"]; len(commit) != 40 || commit != about.Commit {
		t.Errorf("the commit is %q, release.json has %q", commit, about.Commit)
	}

	var sizes map[string]int64
	errtest.Must(t, json.Unmarshal(committedSizes, &sizes))
	if diff := cmp.Diff(slices.Sorted(maps.Keys(sizes)),
		slices.Sorted(maps.Keys(about.Sizes))); diff != "" {
		t.Errorf("programs and images (-want +got):\n%s", diff)
	}
}

// machines are the machines of ELF files by architecture.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// checkMachine checks the architecture of an ELF file. Other files have none.
func checkMachine(t *testing.T, name, arch string, file []byte) (isELF bool) {
	t.Helper()
	if !bytes.HasPrefix(file, []byte(elf.ELFMAG)) {
		return false
	}
	f, err := elf.NewFile(bytes.NewReader(file))
	errtest.Must(t, err)
	if f.Machine != machines[arch] {
		t.Errorf("%s for %s is for the machine %v", name, arch, f.Machine)
	}
	return true
}

// checkImages checks that the archive of an image has one index with an image for each
// architecture, that each ELF file in it is for its architecture, and that a manifest in dir has
// the digest of the index, except for the image of the tools.
func checkImages(t *testing.T, dir, image string) {
	t.Helper()
	at := t.TempDir()
	run(t, at, "tar", "-xf", filepath.Join(dir, image+".tar"))
	top, err := layout.ImageIndexFromPath(at)
	errtest.Must(t, err)
	m, err := top.IndexManifest()
	errtest.Must(t, err)
	digest := m.Manifests[0].Digest

	if image != "kubeveil-tools" {
		text := string(filetest.Read(t, filepath.Join(dir, image+".yaml")))
		if !strings.Contains(text, "image: registry.example/"+image+":v0.0.1@"+digest.String()) {
			t.Errorf("%s.yaml does not name the index %s", image, digest)
		}
	}

	index, err := top.ImageIndex(digest)
	errtest.Must(t, err)
	m, err = index.IndexManifest()
	errtest.Must(t, err)
	if len(m.Manifests) != len(arches) {
		t.Fatalf("%s has %d images", image, len(m.Manifests))
	}
	for i, arch := range arches {
		img, err := index.Image(m.Manifests[i].Digest)
		errtest.Must(t, err)
		files, found := filesOf(t, img), 0
		for name, file := range files {
			if checkMachine(t, name, arch, file) {
				found++
			}
		}
		if found == 0 {
			t.Errorf("%s for %s has no ELF file", image, arch)
		}
		checkImageBill(t, dir, image, arch, files)
	}
}

// filesOf returns the regular files of an image by their paths.
func filesOf(t *testing.T, img v1.Image) map[string][]byte {
	t.Helper()
	layers, err := img.Layers()
	errtest.Must(t, err)
	files := map[string][]byte{}
	for _, l := range layers {
		r, err := l.Uncompressed()
		errtest.Must(t, err)
		defer r.Close()
		readTar(t, r, files)
	}
	return files
}

// readTar adds the regular files of a tar archive to files.
func readTar(t *testing.T, r io.Reader, files map[string][]byte) {
	t.Helper()
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		errtest.Must(t, err)
		if h.Typeflag == tar.TypeReg {
			files[h.Name], err = io.ReadAll(tr)
			errtest.Must(t, err)
		}
	}
}
