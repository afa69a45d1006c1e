package kubelet

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// images are the file systems of images, which are made when a pod first needs them.
type images struct {
	archive, dir string
	dns          []netip.Addr
	mu           sync.Mutex
	made         map[string]*image
}

// image is the file system of an image, and what it runs.
type image struct {
	root                 string
	entrypoint, cmd, env []string
}

// devices are the character devices in the file system of an image, by major and minor number.
var devices = map[string][2]uint32{"null": {1, 3}, "zero": {1, 5}, "urandom": {1, 9}}

func (i *images) get(ref string) (*image, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if m := i.made[ref]; m != nil {
		return m, nil
	}
	m, err := i.make(ref)
	if err != nil {
		return nil, fmt.Errorf("image %s of %s: %w", ref, i.archive, err)
	}
	i.made[ref] = m
	return m, nil
}

func (i *images) make(ref string) (*image, error) {
	tag, err := name.NewTag(ref)
	if err != nil {
		return nil, err
	}
	img, err := tarball.ImageFromPath(i.archive, &tag)
	if err != nil {
		return nil, err
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	m := &image{root: filepath.Join(i.dir, fmt.Sprint(len(i.made))), cmd: file.Config.Cmd,
		entrypoint: file.Config.Entrypoint, env: file.Config.Env}
	if err := os.MkdirAll(filepath.Join(m.root, "dev"), 0o755); err != nil {
		return nil, err
	}
	content := mutate.Extract(img)
	if err := errors.Join(unpack(m.root, content), content.Close()); err != nil {
		return nil, err
	}

	for name, d := range devices {
		err := unix.Mknod(filepath.Join(m.root, "dev", name), unix.S_IFCHR|0o666,
			int(unix.Mkdev(d[0], d[1])))
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, err
		}
	}
	var resolv strings.Builder
	for _, a := range i.dns {
		fmt.Fprintln(&resolv, "nameserver", a)
	}
	etc := filepath.Join(m.root, "etc")
	return m, errors.Join(os.MkdirAll(etc, 0o755),
		os.WriteFile(filepath.Join(etc, "resolv.conf"), []byte(resolv.String()), 0o644))
}

// unpack unpacks a tar archive into a folder.
func unpack(dir string, r io.Reader) error {
	cmd := exec.Command("tar", "--extract", "--directory", dir)
	cmd.Stdin = r
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("unpack: %w: %s", err, out)
	}
	return nil
}

// command returns the command line of a container. Its program ends with all that it started.
func (k *Kubelet) command(p *pod, c corev1.Container) ([]string, error) {
	m, err := k.images.get(c.Image)
	if err != nil {
		return nil, err
	}
	line := slices.Concat(m.entrypoint, m.cmd)
	switch {
	case len(c.Command) > 0:
		line = slices.Concat(c.Command, c.Args)
	case len(c.Args) > 0:
		line = slices.Concat(m.entrypoint, c.Args)
	}
	return slices.Concat([]string{"unshare", "--pid", "--fork", "--kill-child"},
		k.inside(p, m, c), line), nil
}

// inside returns the beginning of a command line in the file system of a container.
func (k *Kubelet) inside(p *pod, m *image, c corev1.Container) []string {
	line := slices.Concat([]string{"chroot", m.root, "/usr/bin/env", "-i"}, m.env)
	for _, e := range c.Env {
		value := e.Value
		if e.ValueFrom != nil && e.ValueFrom.FieldRef != nil &&
			e.ValueFrom.FieldRef.FieldPath == "status.podIPs" {
			var addrs []string
			for _, a := range p.pod.Addrs {
				addrs = append(addrs, a.String())
			}
			value = strings.Join(addrs, ",")
		}
		line = append(line, e.Name+"="+value)
	}
	return line
}
