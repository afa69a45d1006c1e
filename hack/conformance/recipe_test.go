package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
)

// archive writes a tar with empty files of these names; one that ends in "|" is a device.
func archive(t *testing.T, names ...string) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range names {
		h := tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755}
		if strings.HasSuffix(name, "|") {
			h.Typeflag = tar.TypeChar
		}
		errtest.Must(t, w.WriteHeader(&h))
	}
	errtest.Must(t, w.Close())
	path := filepath.Join(t.TempDir(), "root.tar")
	filetest.Write(t, path, b.Bytes(), 0o644)
	return path
}

// contents returns the names in a layer, links with "->" and what they lead to.
func contents(t *testing.T, layer v1.Layer) []string {
	t.Helper()
	r, err := layer.Uncompressed()
	errtest.Must(t, err)
	defer r.Close()
	var names []string
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return names
		}
		errtest.Must(t, err)
		name := h.Name
		if h.Typeflag == tar.TypeSymlink {
			name += "->" + h.Linkname
		}
		names = append(names, name)
	}
}

// debian are the names in the packages that the test needs: the programs that specs call, and the
// targets of links.
var debian = func() []string {
	names := []string{"./bin/bash", "./bin/busybox", "./bin/nc.openbsd", "./usr/sbin/iptables-nft",
		"./usr/sbin/ip6tables-nft"}
	for _, program := range called {
		if !slices.Contains(applets, program) && alternatives["bin/"+program] == "" &&
			alternatives["usr/sbin/"+program] == "" {
			names = append(names, "./usr/bin/"+program)
		}
	}
	return names
}()

func TestDebianLayer(t *testing.T) {
	layer, err := debianLayer(archive(t,
		append(slices.Clone(debian), "./bin/sh", "./usr/bin/nslookup", "./dev/null|")...))
	errtest.Must(t, err)
	got := "\n" + strings.Join(contents(t, layer), "\n") + "\n"
	for _, want := range []string{"\n./bin/bash\n", "\nbin/sh->bash\n", "\nbin/nc->nc.openbsd\n",
		"\nusr/sbin/iptables->iptables-nft\n", "\nbin/mount->busybox\n", "\netc/passwd\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	for _, not := range []string{"dev/null", "bin/nslookup->", "./bin/sh\n"} {
		if strings.Contains(got, not) {
			t.Errorf("%q in\n%s", not, got)
		}
	}
}

// A broken link, or a missing program that a spec calls, is an error. Otherwise it would only show
// after half an hour, in a failed spec.
func TestWhatIsMissingIsRefused(t *testing.T) {
	for missing, want := range map[string]string{
		"./bin/bash":         "has no bin/bash, to which bin/sh is a link",
		"./bin/busybox":      "has no bin/busybox",
		"./usr/bin/blockdev": "has no blockdev, which specs call",
	} {
		var names []string
		for _, name := range debian {
			if name != missing {
				names = append(names, name)
			}
		}
		if _, err := debianLayer(archive(t, names...)); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("without %s: error %v, want %q", missing, err, want)
		}
	}
}

func TestNotAnArchive(t *testing.T) {
	path := filepath.Join(t.TempDir(), "root.tar")
	filetest.Write(t, path, []byte(strings.Repeat("no tar", 200)), 0o644)
	if _, err := debianLayer(path); err == nil || !strings.Contains(err.Error(), "read "+path) {
		t.Errorf("error %v", err)
	}
}

// Every recipe makes an image with its configuration. The same inputs make the same image.
func TestRecipes(t *testing.T) {
	bin := t.TempDir()
	for _, name := range []string{"agnhost", "coredns", "regression-issue-74839"} {
		filetest.Write(t, filepath.Join(bin, name), []byte(name), 0o755)
	}

	for _, name := range []string{"localhost.crt", "localhost.key"} {
		filetest.Write(t, filepath.Join(bin, name), []byte(name), 0o644)
	}

	root := archive(t, debian...)
	digests := [2]map[string]string{{}, {}}
	for i := range digests {
		k := newKitchen(root, bin, filepath.Join(bin, "agnhost"), bin)
		for name, cook := range recipes {
			img, err := cook(k)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			hash, err := img.Digest()
			errtest.Must(t, err)
			config, err := img.ConfigFile()
			errtest.Must(t, err)
			if config.OS != "linux" || len(config.Config.Env) != 1 ||
				len(config.RootFS.DiffIDs) == 0 {
				t.Errorf("%s: %+v", name, config)
			}
			digests[i][name] = hash.String()
		}
	}

	if diff := cmp.Diff(digests[0], digests[1]); diff != "" {
		t.Error(diff)
	}
}
