package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// searchPath is the environment variable PATH in all images.
const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// recipes are the functions that make the images, by the name of the image without registry and
// tag. Upstream makes most of these images from Alpine or Debian with the same programs. Ours
// differ in the C library and the versions of the programs.
var recipes = map[string]func(*kitchen) (v1.Image, error){
	"agnhost": func(k *kitchen) (v1.Image, error) {
		return k.image(v1.Config{Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}},
			k.debian, k.agnhost)
	},
	// The program of this image is agnhost, which is static and has a verb that waits for signals
	// like pause.
	"pause": func(k *kitchen) (v1.Image, error) {
		return k.image(v1.Config{Entrypoint: []string{"/agnhost", "pause"}}, k.agnhost)
	},
	"busybox": func(k *kitchen) (v1.Image, error) {
		return k.image(v1.Config{Cmd: []string{"sh"}}, k.debian)
	},
	"distroless-iptables": func(k *kitchen) (v1.Image, error) {
		return k.image(v1.Config{}, k.debian)
	},
	"glibc-dns-testing": func(k *kitchen) (v1.Image, error) {
		return k.image(v1.Config{Cmd: []string{"bash"}}, k.debian)
	},
	"netshoot": func(k *kitchen) (v1.Image, error) {
		return k.image(v1.Config{Cmd: []string{"bash"}}, k.debian)
	},
	"socat": func(k *kitchen) (v1.Image, error) {
		return k.image(v1.Config{Entrypoint: []string{"socat"}}, k.debian)
	},
	"nginx": func(k *kitchen) (v1.Image, error) {
		return k.image(v1.Config{Cmd: []string{"nginx", "-g", "daemon off;"}}, k.debian)
	},
	"regression-issue-74839": func(k *kitchen) (v1.Image, error) {
		return k.image(v1.Config{Entrypoint: []string{"/regression-issue-74839"}}, k.regression)
	},
}

// kitchen makes the layers of the images, when a recipe first needs them. Images share layers, and
// each layer is in the archive once.
type kitchen struct {
	debian, agnhost, regression func() (v1.Layer, error)
}

func newKitchen(root, bin, agnhost, porter string) *kitchen {
	return &kitchen{
		debian: sync.OnceValues(func() (v1.Layer, error) { return debianLayer(root) }),
		agnhost: sync.OnceValues(func() (v1.Layer, error) {
			return newLayer([]entry{
				{name: "agnhost", from: agnhost},
				// Some tests start agnhost by this name.
				{name: "agnhost-2", link: "agnhost"},
				{name: "coredns", from: filepath.Join(bin, "coredns")},
				{name: "uploads/"},
				// The certificate and key of agnhost's TLS servers.
				{name: "localhost.crt", from: filepath.Join(porter, "localhost.crt")},
				{name: "localhost.key", from: filepath.Join(porter, "localhost.key")},
			})
		}),
		regression: sync.OnceValues(func() (v1.Layer, error) {
			return newLayer([]entry{{name: "regression-issue-74839",
				from: filepath.Join(bin, "regression-issue-74839")}})
		}),
	}
}

// image returns an image with these layers and this configuration.
func (k *kitchen) image(config v1.Config, from ...func() (v1.Layer, error)) (v1.Image, error) {
	var layers []v1.Layer
	for _, make := range from {
		layer, err := make()
		if err != nil {
			return nil, err
		}
		layers = append(layers, layer)
	}
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		return nil, err
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config = "linux", runtime.GOARCH, config
	file.Config.Env = []string{"PATH=" + searchPath}
	return mutate.ConfigFile(img, file)
}

// entry is a file in a layer. If name ends in a slash, it is a folder. If link is set, it is a
// symbolic link. If from is set, it is a copy of that file of this machine. Otherwise it is a file
// with content. All users may read and execute it.
type entry struct {
	name, from, link, content string
}

func newLayer(entries []entry) (v1.Layer, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		if err := e.add(w); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return packed(b.Bytes())
}

func (e entry) add(w *tar.Writer) error {
	h := tar.Header{Name: e.name, Mode: 0o755, ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}
	if strings.HasSuffix(e.name, "/") {
		h.Typeflag = tar.TypeDir
		return w.WriteHeader(&h)
	}
	if e.link != "" {
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, e.link, 0o777
		return w.WriteHeader(&h)
	}
	b := []byte(e.content)
	if e.from != "" {
		var err error
		if b, err = os.ReadFile(e.from); err != nil {
			return err
		}
	}
	h.Typeflag, h.Size = tar.TypeReg, int64(len(b))
	if err := w.WriteHeader(&h); err != nil {
		return err
	}
	_, err := w.Write(b)
	return err
}

// packed returns a layer with the tar archive b. It compresses at the fastest level, because
// emulated machines must read the layer.
func packed(b []byte) (v1.Layer, error) {
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil }
	return tarball.LayerFromOpener(open, tarball.WithCompressionLevel(1),
		tarball.WithCompressedCaching)
}

// alternatives are symbolic links that the scripts of the packages would have made. The scripts
// have not run. A link replaces a file of that name in a package. sh must be a shell with the
// builtin let: some specs of volumes count with let, and would loop forever without it.
var alternatives = map[string]string{
	"bin/nc":             "nc.openbsd",
	"bin/sh":             "bash",
	"usr/sbin/iptables":  "iptables-nft",
	"usr/sbin/ip6tables": "ip6tables-nft",
}

// applets are programs that images of BusyBox have and the packages may lack. They become links to
// busybox. wget is not among them, because BusyBox's wget, linked statically with this C library,
// crashes when it looks up an address.
var applets = []string{
	"awk", "diff", "find", "hostname", "ifconfig", "kill", "mount", "nslookup", "ping", "ping6",
	"ps", "sed", "traceroute", "umount", "vi", "which", "xargs",
}

// called are programs that commands in the specs run. debianLayer checks that they exist. Otherwise
// a missing program would only show after minutes, in a failed spec.
var called = []string{
	"awk", "base64", "blockdev", "cat", "chgrp", "chmod", "curl", "cut", "date", "dd", "dig",
	"diff", "echo", "grep", "head", "hostname", "ip", "iptables", "ln", "ls",
	"mkdir", "mount", "nc", "nslookup", "nsenter", "ping", "ps", "rm", "sed", "seq", "sh",
	"sha256sum", "sleep", "socat", "ss", "stat", "sync", "tail", "test", "timeout",
	"touch", "tr", "true", "wc", "wget", "xargs",
}

// accounts are files that the scripts of the packages would have made, such as the files with user
// accounts. The scripts have not run.
var accounts = []entry{
	{name: "etc/passwd",
		content: "root:x:0:0:root:/root:/bin/sh\nwww-data:x:33:33::/var/www:/bin/false\nnobody:x:65534:65534::/:/bin/false\n"},
	{name: "etc/group", content: "root:x:0:\nadm:x:4:\nwww-data:x:33:\nnogroup:x:65534:\n"},
	// The specs expect BusyBox's wget, which tries only once.
	{name: "root/.wgetrc", content: "tries = 1\n"},
}

// debianLayer returns a layer with the unpacked packages in the archive at path, without devices,
// and with alternatives, accounts, and links for missing applets.
func debianLayer(path string) (v1.Layer, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	names, err := copyTree(w, tar.NewReader(f))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}

	links := missingLinks(names)
	for _, e := range links {
		if to := filepath.Join(filepath.Dir(e.name), e.link); !names[to] {
			return nil, fmt.Errorf("%s has no %s, to which %s is a link: look at the list "+
				"of packages", path, to, e.name)
		}
	}

	for _, e := range append(links, accounts...) {
		names[e.name] = true
		if err := e.add(w); err != nil {
			return nil, err
		}
	}

	for _, program := range called {
		if !found(names, program) {
			return nil, fmt.Errorf("%s has no %s, which specs call: look at the list of packages",
				path, program)
		}
	}

	if err := w.Close(); err != nil {
		return nil, err
	}
	return packed(b.Bytes())
}

// found reports whether a folder of PATH contains the program.
func found(names map[string]bool, program string) bool {
	return slices.ContainsFunc(strings.Split(searchPath, ":"), func(dir string) bool {
		return names[strings.TrimPrefix(dir, "/")+"/"+program]
	})
}

// copyTree copies all files except devices and files that alternatives replace, and returns the
// names.
func copyTree(w *tar.Writer, r *tar.Reader) (map[string]bool, error) {
	names := map[string]bool{}
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names, nil
		}
		if err != nil {
			return nil, err
		}
		name := path.Clean(h.Name)
		if h.Typeflag == tar.TypeChar || h.Typeflag == tar.TypeBlock || h.Typeflag == tar.TypeFifo {
			continue
		}
		if _, ours := alternatives[name]; ours {
			continue
		}
		names[name] = true
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := io.Copy(w, r); err != nil {
			return nil, err
		}
	}
}

// missingLinks returns links for the alternatives, and for the applets that no folder in PATH
// contains, sorted by name.
func missingLinks(names map[string]bool) []entry {
	var out []entry
	for name, to := range alternatives {
		out = append(out, entry{name: name, link: to})
	}
	for _, applet := range applets {
		if !found(names, applet) {
			out = append(out, entry{name: "bin/" + applet, link: "busybox"})
		}
	}
	slices.SortFunc(out, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	return out
}
