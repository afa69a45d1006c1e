package nodes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/cluster/network/session"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// The directories in which containerd looks for CNI: the usual one for plugins, and those of k3s.
const (
	usualPlugins = "/opt/cni/bin"
	k3sConf      = "/var/lib/rancher/k3s/agent/etc/cni/net.d"
	k3sPlugins   = "/var/lib/rancher/k3s/data/cni"
)

// Directories installs Kubeveil by the component cni-dirs on machines whose containerd has the
// directories of k3s (docs/how-to/k3s.md), and removes it. Pods must talk, nothing of Kubeveil may
// be in the usual directories, and nodes must be as before.
func Directories(ctx context.Context, s *session.Session) (err error) {
	set, err := s.RunKubectl(ctx, "-n", metav1.NamespaceSystem, "get", "daemonset",
		session.VeildSet, "--ignore-not-found", "--output=name")
	if err == nil && set != "" {
		err = Uninstall(ctx, s)
	}
	if err != nil {
		return err
	}
	install, err := withDirectories(s, "install", s.Manifests)
	if err != nil {
		return err
	}
	clean, err := withDirectories(s, "uninstall", filepath.Join(s.Manifests, "uninstall"))
	if err != nil {
		return err
	}

	usual := [2]string{abi.CNIConfDir, usualPlugins}
	k3s := [2]string{k3sConf, k3sPlugins}
	if err := lookIn(ctx, s, usual, k3s); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lookIn(ctx, s, k3s, usual)) }()

	first := s.Before
	if s.Before, err = s.Inventories(ctx); err != nil {
		return err
	}
	defer func() { s.Before = first }()
	if err := applyAll(ctx, s, "-k", install); err != nil {
		return err
	}
	if err := errors.Join(pairTalks(ctx, s), onlyIn(ctx, s, k3s, usual)); err != nil {
		return err
	}
	return uninstall(ctx, s, []string{"-k", clean}, func(ctx context.Context) error {
		_, err := s.RunKubectl(ctx, "delete", "-k", install, "--ignore-not-found")
		return err
	})
}

// withDirectories writes a kustomization with the component cni-dirs, and returns its folder.
func withDirectories(s *session.Session, name, base string) (string, error) {
	dir := filepath.Join(s.Dir, "cni-dirs", name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	resource, err := filepath.Rel(dir, base)
	if err != nil {
		return "", err
	}
	component, err := filepath.Rel(dir, filepath.Join(s.Manifests, "components/cni-dirs"))
	if err != nil {
		return "", err
	}

	text := fmt.Sprintf("resources: [%s]\ncomponents: [%s]\nsortOptions: {order: fifo}\n",
		resource, component)
	return dir, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o644)
}

// lookIn makes the containerd of all machines look for CNI in other directories: for the
// configuration and for plugins.
func lookIn(ctx context.Context, s *session.Session, from, to [2]string) error {
	machines, err := s.LinuxNodes(ctx)
	for _, m := range machines {
		_, e := s.Lab.Exec(ctx, m, fmt.Sprintf("set -e; mkdir -p %[3]s %[4]s; "+
			"grep -q '\"%[1]s\"' /etc/containerd/config.toml; "+
			"sed -i 's|\"%[1]s\"|\"%[3]s\"|; s|\"%[2]s\"|\"%[4]s\"|' /etc/containerd/config.toml; "+
			"systemctl restart containerd", from[0], from[1], to[0], to[1]))
		err = errors.Join(err, e)
	}
	return err
}

// onlyIn returns an error unless Kubeveil's files of CNI are in the directories want, and none is
// in other.
func onlyIn(ctx context.Context, s *session.Session, want, other [2]string) error {
	now, err := s.Inventories(ctx)
	if err != nil {
		return err
	}
	machines, err := s.LinuxNodes(ctx)
	for _, m := range machines {
		added := strings.Join(session.Difference(s.Before[m], now[m]), "\n")
		for i, dir := range want {
			if !strings.Contains(added, "+ file "+dir+"/") {
				err = errors.Join(err, fmt.Errorf("%s: nothing is in %s:\n%s", m, dir, added))
			}
			if strings.Contains(added, "+ file "+other[i]+"/") {
				err = errors.Join(err, fmt.Errorf("%s: files are in %s:\n%s", m, other[i], added))
			}
		}
	}
	return err
}
