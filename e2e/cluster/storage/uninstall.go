package storage

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

// cleaner selects the pods of manifests/csi-uninstall.
const cleaner = "--selector=app.kubernetes.io/component=csi-cleanup"

// uninstall follows docs/storage.md: with ciphertext left the node is not touched; without it,
// nothing of the driver remains.
func (s *Session) uninstall(ctx context.Context) error {
	const left = images + "/left.img"
	if _, err := s.node(ctx, "touch "+left); err != nil {
		return err
	}

	for _, words := range [][]string{
		{"-n", "kube-system", "delete", "daemonset", "veil-csi", "--wait=true"},
		{"apply", "-k", filepath.Join(s.Manifests, "csi-uninstall")},
	} {
		if _, err := s.kubectl(ctx, words...); err != nil {
			return err
		}
	}

	err := until(ctx, "the node's cleaner refuses", func() error {
		out, err := s.kubectl(ctx, "-n", "kube-system", "logs", cleaner, "-c", "cleanup",
			"--tail=5")
		if err == nil && !strings.Contains(out, left) {
			err = fmt.Errorf("it prints %q", out)
		}
		return err
	})
	if err != nil {
		return err
	}

	if _, err := s.node(ctx, "test -d /var/lib/kubelet/plugins/csi.kubeveil.io && rm "+
		left); err != nil {
		return fmt.Errorf("a node that was refused was touched: %w", err)
	}

	err = until(ctx, "the node is clean", func() error {
		out, err := s.kubectl(ctx, "-n", "kube-system", "get", "pods", cleaner, "-o",
			`jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}`)
		if err == nil && out != "True" {
			err = fmt.Errorf("not Ready: %q", out)
		}
		return err
	})
	if err != nil {
		return err
	}

	// The disk is mounted where the driver's folder was.
	out, err := s.node(ctx, "ls -d /var/lib/kubelet/plugins/csi.kubeveil.io "+
		"/var/lib/kubelet/plugins_registry/csi.kubeveil.io-reg.sock /run/kubeveil/csi "+images+" "+
		dataDir+"/claims 2>/dev/null; true")
	if err == nil && out != "" {
		err = errors.New("left: " + out)
	}

	if err != nil {
		return err
	}

	for _, words := range [][]string{
		{"delete", "-k", filepath.Join(s.Manifests, "csi-uninstall")},
		{"annotate", "crd", "veilvolumes.csi.kubeveil.io",
			"csi.kubeveil.io/destroy=veilvolumes.csi.kubeveil.io"},
		{"delete", "--ignore-not-found", "-k", filepath.Join(s.Manifests, "csi-snapshots")},
	} {
		if _, err := s.kubectl(ctx, words...); err != nil {
			return err
		}
	}

	return nil
}
