package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

//go:embed debian.lock
var debianLock string

// debianPackage is a line of debian.lock: a package, the SHA-256 of its file, and the path of that
// file in Debian's archive.
type debianPackage struct {
	path    string
	Name    string `json:"name"`
	Version string `json:"version"`
	SHA256  string `json:"sha256"`
}

// locked returns the packages of the recipe for an architecture from the text of debian.lock.
func locked(lock, arch string, r recipe) (packages []debianPackage, err error) {
	for line := range strings.Lines(lock) {
		f := strings.Fields(line)
		if len(f) == 5 && f[0] == arch && slices.Contains(r.debian, f[1]) {
			packages = append(packages, debianPackage{Name: f[1], Version: f[2], SHA256: f[3],
				path: f[4]})
		}
	}
	if len(packages) != len(r.debian) {
		return nil, fmt.Errorf("--arch %s: debian.lock has %d of the %d packages %v", arch,
			len(packages), len(r.debian), r.debian)
	}
	return packages, nil
}

// addDebian adds the programs and files that the recipe has from Debian: the programs below
// usr/bin, and their libraries, loader and licences at their paths in the packages. cache is a
// folder in which files of packages are kept.
func addDebian(ctx context.Context, files map[string][]byte, r recipe, arch, cache string) error {
	packages, err := locked(debianLock, arch, r)
	if err != nil {
		return err
	}

	all := debianFiles{}
	uris := sync.OnceValues(func() ([]string, error) { return archives(ctx) })
	for _, p := range packages {
		file, err := fetch(ctx, p, cache, uris)
		if err != nil {
			return fmt.Errorf("package %s %s for %s: %w", p.Name, p.Version, arch, err)
		}
		if err := all.unpack(ctx, file); err != nil {
			return fmt.Errorf("unpack %s: %w", file, err)
		}
	}
	return all.addTo(files, r)
}

// addTo adds what the recipe has from Debian to files.
func (d debianFiles) addTo(files map[string][]byte, r recipe) error {
	for _, program := range r.tools {
		b, err := d.first(program, "sbin", "usr/sbin", "bin", "usr/bin")
		if err != nil {
			return err
		}
		files["usr/bin/"+program] = b
		if err := d.addLibraries(files, b); err != nil {
			return fmt.Errorf("%s: %w", program, err)
		}
	}

	names := slices.Clone(r.toolFiles)
	for _, p := range r.debian {
		names = append(names, "usr/share/doc/"+p+"/copyright")
	}
	for _, name := range names {
		b, err := d.read(name)
		if err != nil {
			return err
		}
		files[name] = b
	}
	return nil
}

// fetch returns the path of the file of a package in the folder cache. If it is not there, apt
// downloads it from one of the archives.
func fetch(ctx context.Context, p debianPackage, cache string,
	archives func() ([]string, error)) (string, error) {
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	file, err := filepath.Abs(filepath.Join(cache, p.SHA256+".deb"))
	if err != nil {
		return "", err
	}
	if b, err := os.ReadFile(file); err == nil && fmt.Sprintf("%x", sha256.Sum256(b)) == p.SHA256 {
		return file, nil
	}

	uris, err := archives()
	if err != nil {
		return "", err
	}

	var tried error
	for _, uri := range uris {
		c := exec.CommandContext(ctx, "/usr/lib/apt/apt-helper", "download-file",
			uri+"/"+p.path, file, "SHA256:"+p.SHA256)
		out, err := c.CombinedOutput()
		if err == nil {
			return file, nil
		}
		tried = errors.Join(tried, fmt.Errorf("%s: %w: %s", uri, err, bytes.TrimSpace(out)))
	}
	return "", errors.Join(errors.New("no archive in apt's configuration has it: "+
		"`hack/lock-debian.sh` locks the newest version"), tried)
}

// archives returns the addresses of the archives in apt's configuration, Debian's and others. The
// locked sum decides what is taken from them. It needs no lists of packages and no root.
func archives(ctx context.Context) ([]string, error) {
	out, err := exec.CommandContext(ctx, "apt-get", "update", "--print-uris").Output()
	if err != nil {
		return nil, fmt.Errorf("apt-get update --print-uris: %w", err)
	}
	return parseArchives(string(out)), nil
}

// parseArchives returns the addresses before /dists/ in the output of apt-get update --print-uris,
// whose lines are "'address' file size".
func parseArchives(out string) (all []string) {
	for line := range strings.Lines(out) {
		uri, _, found := strings.Cut(strings.TrimPrefix(line, "'"), "/dists/")
		if found && !slices.Contains(all, uri) {
			all = append(all, uri)
		}
	}
	return all
}

// debianFiles are the files of unpacked packages, by their paths without a leading slash. A link
// has the path of its target.
type debianFiles map[string]debianFile

type debianFile struct {
	content []byte
	link    string
}

// unpack adds the files of a package.
func (d debianFiles) unpack(ctx context.Context, file string) error {
	out, err := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", file).Output()
	if err != nil {
		return fmt.Errorf("dpkg-deb: %w", err)
	}
	for r := tar.NewReader(bytes.NewReader(out)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}

		name := path.Clean(h.Name)
		switch h.Typeflag {
		case tar.TypeReg:
			content, err := io.ReadAll(r)
			if err != nil {
				return err
			}
			d[name] = debianFile{content: content}
		case tar.TypeSymlink:
			target := h.Linkname
			if !path.IsAbs(target) {
				target = path.Join("/", path.Dir(name), target)
			}
			d[name] = debianFile{link: strings.TrimPrefix(path.Clean(target), "/")}
		case tar.TypeLink:
			d[name] = debianFile{link: path.Clean(h.Linkname)}
		}
	}
}

// read returns the content of a file. It follows links, of folders too.
func (d debianFiles) read(name string) ([]byte, error) {
	at := name
	for range 10 {
		if f, ok := d[at]; ok && f.link == "" {
			return f.content, nil
		}
		next, found := at, false
		for prefix := at; prefix != "." && !found; prefix = path.Dir(prefix) {
			if f := d[prefix]; f.link != "" {
				next, found = f.link+strings.TrimPrefix(at, prefix), true
			}
		}
		if !found {
			break
		}
		at = next
	}
	return nil, fmt.Errorf("no package of the recipe has %s", name)
}

// first returns the content of the file name in the first of the folders that has it.
func (d debianFiles) first(name string, folders ...string) ([]byte, error) {
	for _, folder := range folders {
		if b, err := d.read(path.Join(folder, name)); err == nil {
			return b, nil
		}
	}
	return nil, fmt.Errorf("no package of the recipe has %s", name)
}

// addLibraries adds the loader and the libraries that an ELF file needs, and that these need.
func (d debianFiles) addLibraries(files map[string][]byte, file []byte) error {
	f, err := elf.NewFile(bytes.NewReader(file))
	if err != nil {
		return err
	}
	defer f.Close()
	needed, err := f.ImportedLibraries()
	if err != nil {
		return err
	}

	var names []string
	for _, library := range needed {
		names = append(names, library)
		for _, folder := range libraryFolders[f.Machine] {
			if _, err := d.read(path.Join(folder, library)); err == nil {
				names[len(names)-1] = path.Join(folder, library)
				break
			}
		}
	}
	if interp := f.Section(".interp"); interp != nil {
		b, err := interp.Data()
		if err != nil {
			return err
		}
		names = append(names, strings.Trim(string(b), "/\x00"))
	}

	for _, name := range names {
		if files[name] != nil {
			continue
		}
		b, err := d.read(name)
		if err != nil {
			return err
		}
		files[name] = b
		if err := d.addLibraries(files, b); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// libraryFolders are the folders in which Debian's loader looks, by machine.
var libraryFolders = map[elf.Machine][]string{
	elf.EM_X86_64:  {"lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"},
	elf.EM_AARCH64: {"lib/aarch64-linux-gnu", "usr/lib/aarch64-linux-gnu"},
}
