package nodes

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/cluster/network/session"
	"github.com/kubeveil/kubeveil/e2e/cluster/release"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// Releases holds two releases and the program Helm. Its methods are cases that follow each other.
type Releases struct {
	// Last and This are folders: of the last release, and of this tree's release. Each has
	// kubeveil.yaml, and its image kubeveil.tar is imported on the machines. Last also has the
	// programs in bin. This has uninstall.yaml and the chart.
	Last, This release.Folder
	// Helm is the path of Helm.
	Helm string
}

// InstallLast installs the last release, on the control plane's host too.
func (r Releases) InstallLast(ctx context.Context, s *session.Session) (err error) {
	s.Lab.UseHostPrograms(r.Last.File("bin"))
	if s.Before, err = s.Inventories(ctx); err != nil {
		return err
	}

	if err := applyAll(ctx, s, "-f", r.Last.File(network)); err != nil {
		return err
	}
	return pairTalks(ctx, s)
}

// network is the file of a release with the manifests of the network.
const network = "kubeveil.yaml"

// pairTalks makes the shared pods talk, and notes the version of a node's daemon.
func pairTalks(ctx context.Context, s *session.Session) error {
	a, b, err := s.TwoPods(ctx)
	if err != nil {
		return err
	}
	if err := session.TalkBoth(ctx, a, b); err != nil {
		return err
	}
	pod, err := s.Daemon(ctx, session.VeildSet, a.Node)
	if err != nil {
		return err
	}
	version, err := s.ExecVeilctl(ctx, pod.Name, "version")
	s.Note("%s runs %s", a.Node, strings.Join(strings.Fields(string(version)), " "))
	return err
}

// Upgrade replaces the last release by this tree's release under load, as docs/how-to/upgrade.md
// says. No packet may be lost. Pods of before and a new pod talk.
func (r Releases) Upgrade(ctx context.Context, s *session.Session) error {
	if err := r.tag(ctx, s); err != nil {
		return err
	}
	return lossless(ctx, s, func() error {
		s.Lab.UseHostPrograms("")
		if _, err := s.RunKubectl(ctx, "apply", "-f", r.This.File(network)); err != nil {
			return err
		}
		return errors.Join(s.Rollout(ctx, session.VeildSet), s.Rollout(ctx, session.WorkerSet))
	})
}

// tag returns the image of this tree's release the name with its digest on all machines, as
// docs/get-started.md does.
func (r Releases) tag(ctx context.Context, s *session.Session) error {
	tag, err := r.This.Tag(network)
	if err != nil {
		return err
	}
	nodes, err := s.LinuxNodes(ctx)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		if _, err := s.Lab.Exec(ctx, n, tag); err != nil {
			return err
		}
	}
	return nil
}

// lossless calls change under load, which must replace every veild. No flow may lose a packet, and
// pods of before and a new pod must talk.
func lossless(ctx context.Context, s *session.Session, change func() error) error {
	all, err := s.Load(ctx)
	if err != nil {
		return err
	}
	old, err := s.PodsOf(ctx, session.VeildSet)
	if err != nil {
		return err
	}

	began := time.Now()
	if err := change(); err != nil {
		return err
	}
	s.Note("%d pods of veild replaced in %s", len(old), time.Since(began).Round(time.Second))
	after, err := s.PodsOf(ctx, session.VeildSet)
	errs := []error{err, session.Replaced(session.VeildSet, old, after)}

	n, err := s.OwnNamespace(ctx)
	if err != nil {
		return err
	}
	added := &remote.Pod{Name: "added", Node: s.Pair[0].Node}
	if err := n.Run(ctx, added); err != nil {
		return err
	}
	// Answers of busy machines are late. Records that are lost count at any pace.
	errs = append(errs, session.TalkBoth(ctx, added, s.Pair[1]), pairTalks(ctx, s),
		s.Held(ctx, all, remote.Patience(ctx, session.GapUndisturbed)))
	for _, f := range all {
		errs = append(errs, f.Lossless(ctx))
	}
	return errors.Join(errs...)
}

// Uninstall removes this tree's release as docs/how-to/uninstall.md says.
func (r Releases) Uninstall(ctx context.Context, s *session.Session) error {
	return r.uninstall(ctx, s, func(context.Context) error { return nil })
}

// uninstall calls first before it deletes the objects of the manifests. No object of Kubeveil may
// be left.
func (r Releases) uninstall(ctx context.Context, s *session.Session,
	first func(context.Context) error) error {
	err := uninstall(ctx, s, []string{"-f", r.This.File("uninstall.yaml")},
		func(ctx context.Context) error {
			if err := first(ctx); err != nil {
				return err
			}
			_, err := s.RunKubectl(ctx, "delete", "--ignore-not-found", "-f",
				r.This.File(network))
			return err
		})
	if err != nil {
		return err
	}

	left, err := s.RunKubectl(ctx, "get", "--all-namespaces", "--output=name",
		"--selector=app.kubernetes.io/part-of=kubeveil", kinds)
	if left = strings.TrimSpace(left); left != "" {
		err = errors.Join(err, fmt.Errorf("objects are left: %q", left))
	}
	return err
}

// kinds are the kinds of the objects of a release, without volumes.
const kinds = "crd,validatingadmissionpolicies,validatingadmissionpolicybindings,serviceaccounts," +
	"clusterroles,clusterrolebindings,roles,rolebindings,configmaps,daemonsets"

// InstallChart installs the chart of this tree's release as docs/how-to/helm.md says.
func (r Releases) InstallChart(ctx context.Context, s *session.Session) (err error) {
	if s.Before == nil {
		if s.Before, err = s.Inventories(ctx); err != nil {
			return err
		}
		if err := r.tag(ctx, s); err != nil {
			return err
		}
	}

	began := time.Now()
	if err := r.runChart(ctx, s, "install"); err != nil {
		return err
	}
	if err := waitInstalled(ctx, s); err != nil {
		return err
	}
	s.Note("helm install to all nodes Ready in %.1f s", time.Since(began).Seconds())
	return pairTalks(ctx, s)
}

// UpgradeChart enforces network policies by helm upgrade, under load. No packet may be lost.
func (r Releases) UpgradeChart(ctx context.Context, s *session.Session) error {
	return lossless(ctx, s, func() error {
		if err := r.runChart(ctx, s, "upgrade", "--reset-then-reuse-values", "--set",
			"policy=kubernetes"); err != nil {
			return err
		}
		set, err := s.RunKubectl(ctx, "-n", metav1.NamespaceSystem, "get", "daemonset",
			session.VeildSet, "--output=yaml")
		if err == nil && !strings.Contains(set, "--policy=kubernetes") {
			err = fmt.Errorf("the upgrade did not change the DaemonSet:\n%s", set)
		}
		return errors.Join(err, s.Rollout(ctx, session.VeildSet))
	})
}

// UninstallChart removes the chart as docs/how-to/helm.md says.
func (r Releases) UninstallChart(ctx context.Context, s *session.Session) error {
	return r.uninstall(ctx, s, func(ctx context.Context) error {
		return r.helm(s).Run(ctx, "uninstall", release.Chart)
	})
}

// runChart runs a verb of Helm with the chart.
func (r Releases) runChart(ctx context.Context, s *session.Session, verb string,
	flags ...string) error {
	archive, err := r.This.Archive()
	if err != nil {
		return err
	}
	return r.helm(s).Run(ctx, append([]string{verb, release.Chart, archive}, flags...)...)
}

// helm returns a Helm with a home of its own.
func (r Releases) helm(s *session.Session) release.Helm {
	return release.Helm{Program: r.Helm, Kubeconfig: s.Kubeconfig,
		Home: filepath.Join(s.Dir, "helm")}
}
