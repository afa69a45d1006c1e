package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// built is a program as `go version -m` describes it. Modules are PATH VERSION.
type built struct {
	golang, main string
	modules      []string
}

// builtFrom runs `go version -m` for a program.
func builtFrom(t *testing.T, program string) built {
	t.Helper()
	out, err := exec.Command("go", "version", "-m", program).Output()
	errtest.Must(t, err)
	return parseBuilt(string(out))
}

// parseBuilt parses the output of `go version -m`. A line "=>" has the module that is built instead
// of the one in the line before it.
func parseBuilt(text string) (b built) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		switch {
		case !strings.HasPrefix(line, "\t"):
			b.golang = f[len(f)-1]
		case len(f) < 3:
		case f[0] == "mod":
			b.main = f[1] + " " + f[2]
		case f[0] == "dep":
			b.modules = append(b.modules, f[1]+" "+f[2])
		case f[0] == "=>":
			b.modules[len(b.modules)-1] = f[1] + " " + f[2]
		}
	}
	slices.Sort(b.modules)
	return b
}

func TestReplacedModulesAreRead(t *testing.T) {
	got := parseBuilt("veild: go1.26.8\n\tpath\texample.com/x/cmd\n\tmod\texample.com/x\t(devel)\n" +
		"\tdep\texample.com/b\tv1.0.0\n\t=>\texample.com/fork\tv1.2.0\th1:abc\n" +
		"\tdep\texample.com/a\tv1.1.0\th1:def\n\tdep\texample.com/c\tv0.0.0\n\t=>\t./c\t(devel)\n" +
		"\tbuild\tCGO_ENABLED=0\n")
	want := built{"go1.26.8", "example.com/x (devel)",
		[]string{"./c (devel)", "example.com/a v1.1.0", "example.com/fork v1.2.0"}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(built{})); diff != "" {
		t.Error(diff)
	}
}

// The bill of a program has the module that is built instead of another one.
func TestBillHasTheReplacement(t *testing.T) {
	tree, err := filepath.Abs("../..")
	errtest.Must(t, err)
	tool := filepath.Join(t.TempDir(), "cyclonedx-gomod")
	if err := buildTool(t.Context(), order{tree: tree}, tool, cyclonedx); err != nil {
		nettest.Skip(t, nettest.NoModule, err.Error())
	}

	useModule(t, filepath.Join(t.TempDir(), "modules"))
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module example.com/x\n\ngo 1.26\n\nrequire example.com/old v0.9.0\n\n" +
			"replace example.com/old => example.com/dep v1.0.0\n",
		"main.go": "package main\n\nimport _ \"example.com/old\"\n\nfunc main() {}\n",
	} {
		filetest.Write(t, filepath.Join(dir, name), []byte(text), 0o600)
	}
	run(t, dir, "go", "mod", "tidy")
	run(t, dir, "go", "build", "-o", "program", ".")
	program := filepath.Join(dir, "program")
	b, err := programBill(t.Context(), tool, "x", "v0.0.1", program)
	errtest.Must(t, err)

	want := []string{"example.com/dep v1.0.0"}
	for what, got := range map[string][]string{"go version -m": builtFrom(t, program).modules,
		"components": modules(b), "dependencies": dependenciesOf(b, "x")} {
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
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

// dependenciesOf returns the modules on which a component of a bill depends, as PATH VERSION.
func dependenciesOf(b bill, ref string) (all []string) {
	components := map[string]component{}
	for _, c := range b.Components {
		components[c.Ref] = c
	}
	for _, d := range b.Dependencies {
		if d.Ref != ref {
			continue
		}
		for _, on := range d.On {
			all = append(all, components[on].Name+" "+components[on].Version)
		}
	}
	slices.Sort(all)
	return all
}

// checkProgram checks the component of a program against the program itself.
func checkProgram(t *testing.T, what string, c component, is built, sum string) {
	t.Helper()
	module, version, _ := strings.Cut(is.main, " ")
	if module == ourModule {
		version = "v0.0.1"
	}
	if len(c.Hashes) != 1 || c.Hashes[0].Content != sum || c.Version != version ||
		!strings.HasPrefix(c.PURL, "pkg:golang/"+module+"@"+version) {
		t.Errorf("%s: %+v, want %s %s with the sum %s", what, c, module, version, sum)
	}
}

// checkProgramBill compares a program of a release with the bill beside it.
func checkProgramBill(t *testing.T, file string) {
	t.Helper()
	b, is := readBill(t, file+billSuffix), builtFrom(t, file)
	sum, err := sumOf(file)
	errtest.Must(t, err)
	checkProgram(t, file, b.Metadata.Component, is, sum)
	if diff := cmp.Diff(is.modules, modules(b)); diff != "" {
		t.Errorf("%s: go version -m and the bill (-want +got):\n%s", file, diff)
	}
	checkStandardLibrary(t, file, b, is.golang)
}

// checkStandardLibrary checks that a bill has the standard library of one version of Go.
func checkStandardLibrary(t *testing.T, what string, b bill, golang string) {
	t.Helper()
	var versions []string
	for _, c := range b.Components {
		if c.Name == "std" {
			versions = append(versions, c.Version)
		}
	}
	if len(versions) != 1 || versions[0] != golang {
		t.Errorf("%s: the standard libraries %q, want that of %s", what, versions, golang)
	}
}

// checkImageBill compares the files of an image with its bill. Each file is either a program that
// Go's tools built, or comes from a package of Debian.
func checkImageBill(t *testing.T, dir, image, arch string, files map[string][]byte) {
	t.Helper()
	what := image + " for " + arch
	b := readBill(t, filepath.Join(dir, image+"-linux-"+arch+billSuffix))
	inBill := map[string]component{}
	var packages []string
	for _, c := range b.Components {
		switch {
		case c.Type == "application":
			inBill[c.Name] = c
		case strings.HasPrefix(c.PURL, "pkg:deb/"):
			packages = append(packages, c.Name+" "+c.Version+" "+c.Hashes[0].Content)
		}
	}

	all, others := map[string]bool{}, map[string][]byte{}
	at := t.TempDir()
	for name, text := range files {
		if _, err := buildinfo.Read(bytes.NewReader(text)); err != nil {
			others[name] = text
			continue
		}
		program := path.Base(name)
		filetest.Write(t, filepath.Join(at, program), text, 0o600)
		is := builtFrom(t, filepath.Join(at, program))
		checkProgram(t, what+": "+program, inBill[program], is,
			fmt.Sprintf("%x", sha256.Sum256(text)))
		delete(inBill, program)
		if diff := cmp.Diff(is.modules, dependenciesOf(b, program)); diff != "" {
			t.Errorf("%s: go version -m of %s and the bill (-want +got):\n%s", what, program, diff)
		}
		checkStandardLibrary(t, what, b, is.golang)
		for _, m := range is.modules {
			all[m] = true
		}
	}
	if len(inBill) > 0 || len(all) == 0 {
		t.Errorf("%s: the bill has programs that the image lacks: %v", what, inBill)
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(all)), modules(b)); diff != "" {
		t.Errorf("%s: modules of all programs and the bill (-want +got):\n%s", what, diff)
	}
	checkPackages(t, what, arch, filepath.Join(dir, "../../debian"), packages, others)
}

// checkPackages checks that a bill has the packages of Debian whose licences are among the files of
// an image, as debian.lock has them, and that each file is in one of these packages. cache has
// their archives.
func checkPackages(t *testing.T, what, arch, cache string, inBill []string,
	files map[string][]byte) {
	t.Helper()
	var want []string
	shipped := map[[sha256.Size]byte]bool{}
	for line := range strings.Lines(string(filetest.Read(t, "../image/debian.lock"))) {
		f := strings.Fields(line)
		if f[0] != arch || files["usr/share/doc/"+f[1]+"/copyright"] == nil {
			continue
		}
		want = append(want, strings.Join(f[1:4], " "))

		archive := filepath.Join(cache, f[3]+".deb")
		sum, err := sumOf(archive)
		errtest.Must(t, err)
		if sum != f[3] {
			t.Errorf("%s has the sum %s", archive, sum)
		}
		out, err := exec.Command("dpkg-deb", "--fsys-tarfile", archive).Output()
		errtest.Must(t, err)
		in := map[string][]byte{}
		readTar(t, bytes.NewReader(out), in)
		for _, text := range in {
			shipped[sha256.Sum256(text)] = true
		}
	}
	slices.Sort(inBill)
	slices.Sort(want)
	if diff := cmp.Diff(want, inBill); diff != "" {
		t.Errorf("%s: debian.lock and the bill (-want +got):\n%s", what, diff)
	}
	for name, text := range files {
		if !shipped[sha256.Sum256(text)] {
			t.Errorf("%s: no package in the bill has %s", what, name)
		}
	}
}
