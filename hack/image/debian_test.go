package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// debian.lock has each package of each recipe for both architectures, and nothing else.
func TestLockHasEachPackage(t *testing.T) {
	want := map[string]bool{}
	for _, r := range recipes {
		for _, arch := range []string{"amd64", "arm64"} {
			packages, err := locked(debianLock, arch, r)
			errtest.Must(t, err)
			for _, p := range packages {
				want[arch+" "+p.Name] = true
				if len(p.SHA256) != 64 || !strings.HasPrefix(p.path, "pool/") {
					t.Errorf("%+v", p)
				}
			}
		}
	}
	for line := range strings.Lines(debianLock) {
		f := strings.Fields(line)
		if f[0] != "#" && !want[f[0]+" "+f[1]] {
			t.Errorf("no recipe has %s", line)
		}
	}

	if _, err := locked(debianLock, "s390x", recipes[1]); err == nil ||
		!strings.Contains(err.Error(), "--arch s390x") {
		t.Errorf("an architecture that is not locked: %v", err)
	}
}

// A file is found through links to files and to folders. A circle of links has no file.
func TestFilesBehindLinks(t *testing.T) {
	d := debianFiles{
		"sbin/mke2fs":               {content: []byte("program")},
		"sbin/mkfs.ext4":            {link: "sbin/mke2fs"},
		"usr/share/doc/a":           {link: "usr/share/doc/b"},
		"usr/share/doc/b/copyright": {content: []byte("text")},
		"x":                         {link: "y"},
		"y":                         {link: "x"},
	}
	for name, want := range map[string]string{"sbin/mkfs.ext4": "program",
		"usr/share/doc/a/copyright": "text"} {
		if got, err := d.read(name); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	for _, name := range []string{"x", "x/y", "usr", "nowhere"} {
		if _, err := d.read(name); err == nil {
			t.Errorf("%s was found", name)
		}
	}
}

// A program brings its loader, its libraries and their libraries. A missing one is named.
func TestLibrariesOfAProgram(t *testing.T) {
	const program, folder = "/bin/ls", "lib/x86_64-linux-gnu/"
	if _, err := os.Stat("/" + folder + "libselinux.so.1"); err != nil {
		nettest.Skip(t, nettest.NoProgram, "ls with libselinux for amd64")
	}
	d := debianFiles{"bin/ls": {content: filetest.Read(t, program)}}
	for _, l := range []string{folder + "libselinux.so.1", folder + "libc.so.6",
		folder + "libpcre2-8.so.0", "lib64/ld-linux-x86-64.so.2", folder + "ld-linux-x86-64.so.2"} {
		if b, err := os.ReadFile("/" + l); err == nil {
			d[l] = debianFile{content: b}
		}
	}

	files := map[string][]byte{}
	r := recipe{tools: []string{"ls"}}
	errtest.Must(t, d.addTo(files, r))
	for _, name := range []string{"usr/bin/ls", folder + "libc.so.6", folder + "libpcre2-8.so.0",
		"lib64/ld-linux-x86-64.so.2"} {
		if len(files[name]) == 0 {
			t.Errorf("%s is missing", name)
		}
	}

	delete(d, folder+"libpcre2-8.so.0")
	err := d.addTo(map[string][]byte{}, r)
	if err == nil || !strings.Contains(err.Error(), "libpcre2-8.so.0") {
		t.Errorf("a library that no package has: %v", err)
	}
	err = d.addTo(map[string][]byte{}, recipe{debian: []string{"no-such-package"}})
	if err == nil || !strings.Contains(err.Error(), "no-such-package") {
		t.Errorf("a licence that no package has: %v", err)
	}
}

func TestArchivesOfApt(t *testing.T) {
	got := parseArchives(`'http://one.example/debian/dists/bookworm/InRelease' one_InRelease 0 
'http://one.example/debian/dists/bookworm-updates/InRelease' two_InRelease 0 
'http://two.example/x/dists/bookworm/main/binary-amd64/Packages.xz' three 0 
Reading package lists...
`)
	want := []string{"http://one.example/debian", "http://two.example/x"}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// Only a file with the locked sum counts as fetched.
func TestChangedPackageIsNotUsed(t *testing.T) {
	cache := t.TempDir()
	p := debianPackage{Name: "p", path: "pool/none", SHA256: strings.Repeat("0", 64)}
	filetest.Write(t, cache+"/"+p.SHA256+".deb", []byte("forged"), 0o600)
	none := func() ([]string, error) { return nil, nil }
	if file, err := fetch(t.Context(), p, cache, none); err == nil {
		t.Errorf("%s was used", file)
	}
}
