package storage

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/kubeveil/kubeveil/e2e/cluster/release"
)

// Chart is a release that the cases install by Helm on a cluster without Kubeveil. If Folder is
// empty, they install the manifests of the tree.
type Chart struct {
	// Folder is the release. Its images are imported on the machine.
	release.Folder
	// Helm is the path of the program.
	Helm string
}

// files returns the arguments of kubectl for the tree's folder of manifests, or for the release's
// file with the same objects.
func (s *Session) files(folder, file string) []string {
	if s.Chart.Folder != "" {
		return []string{"-f", s.Chart.File(file)}
	}
	return []string{"-k", filepath.Join(s.Manifests, folder)}
}

// installChart installs the chart with volumes and snapshots, as docs/how-to/helm.md says.
func (s *Session) installChart(ctx context.Context) error {
	for _, manifest := range []string{"kubeveil.yaml", "kubeveil-csi.yaml"} {
		tag, err := s.Chart.Tag(manifest)
		if err != nil {
			return err
		}
		if _, err := s.Node(ctx, tag); err != nil {
			return err
		}
	}
	archive, err := s.Chart.Archive()
	if err != nil {
		return err
	}
	return s.helm().Run(ctx, "install", release.Chart, archive, "--set", "volumes.enabled=true",
		"--set", "volumes.snapshots=true")
}

// uninstallChart removes the chart after its volumes. No object of the chart may be left.
func (s *Session) uninstallChart(ctx context.Context) error {
	if err := s.helm().Run(ctx, "uninstall", release.Chart); err != nil {
		return err
	}
	if _, err := s.Kubectl(ctx, "delete", "--ignore-not-found", "-f",
		s.Chart.File("kubeveil.yaml")); err != nil {
		return err
	}
	left, err := s.Kubectl(ctx, "get", "--all-namespaces", "--output=name",
		"--selector=app.kubernetes.io/part-of=kubeveil", "crd,validatingadmissionpolicies,"+
			"validatingadmissionpolicybindings,serviceaccounts,clusterroles,clusterrolebindings,"+
			"roles,rolebindings,configmaps,daemonsets,deployments,storageclasses,csidrivers,"+
			"volumesnapshotclasses,secrets")
	if err == nil && left != "" {
		err = errors.New("left: " + left)
	}
	return err
}

// helm returns a Helm with a home of its own.
func (s *Session) helm() release.Helm {
	return release.Helm{Program: s.Chart.Helm, Kubeconfig: s.Cluster.Kubeconfig(),
		Home: filepath.Join(s.Cluster.Dir, "helm")}
}
