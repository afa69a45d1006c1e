package nodes

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/cluster/network/session"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// Uninstall removes Kubeveil as in docs/how-to/uninstall.md, after it has removed pods. Nodes must
// be as they were before the installation.
func Uninstall(ctx context.Context, s *session.Session) error {
	return uninstall(ctx, s, []string{"-k", filepath.Join(s.Manifests, "uninstall")},
		func(ctx context.Context) error {
			_, err := s.RunKubectl(ctx, "delete", "-k", s.Manifests, "--ignore-not-found")
			return err
		})
}

// uninstall is Uninstall with the manifests of the cleaning pods, which are arguments of kubectl.
// last removes all other objects.
func uninstall(ctx context.Context, s *session.Session, cleaning []string,
	last func(context.Context) error) error {
	if s.Before == nil {
		return session.Skip("the nodes were not looked at before the installation")
	}
	if err := sees(ctx, s); err != nil {
		return err
	}
	if err := drain(ctx, s); err != nil {
		return err
	}

	began := time.Now()
	for _, words := range [][]string{
		{"-n", metav1.NamespaceSystem, "delete", "daemonset", session.VeildSet, session.WorkerSet,
			"--cascade=foreground"},
		append([]string{"apply"}, cleaning...),
		{"-n", metav1.NamespaceSystem, "rollout", "status", "daemonset/kubeveil-cleanup",
			"--timeout=3m"},
		append([]string{"delete"}, cleaning...),
	} {
		if _, err := s.RunKubectl(ctx, words...); err != nil {
			return err
		}
	}
	if err := last(ctx); err != nil {
		return err
	}

	s.Note("taken away in %.0f s", time.Since(began).Seconds())
	if err := waitNotReady(ctx, s); err != nil {
		return err
	}

	return remote.Until(ctx, "nodes as before the installation", session.Meeting,
		func(ctx context.Context) error {
			after, err := s.Inventories(ctx)
			if err != nil {
				return err
			}
			var errs []error
			for node, before := range s.Before {
				if left := session.Difference(before, after[node]); len(left) > 0 {
					errs = append(errs, fmt.Errorf("%s:\n%s", node, strings.Join(left, "\n")))
				}
			}
			return errors.Join(errs...)
		})
}

// sees returns an error if the inventories of nodes do not show the installed Kubeveil. Such
// inventories could not show what Kubeveil leaves either.
func sees(ctx context.Context, s *session.Session) error {
	now, err := s.Inventories(ctx)
	if err != nil {
		return err
	}
	linux, err := s.LinuxNodes(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for node, before := range s.Before {
		if missing := session.Traces(session.Difference(before, now[node]),
			slices.Contains(linux, node)); len(missing) > 0 {
			errs = append(errs, fmt.Errorf("%s: Kubeveil is installed, but the inventory has no "+
				"new line %q", node, missing))
		}
	}
	return errors.Join(errs...)
}

// drain removes all pods with an address of the cluster. Otherwise processes of nodes, such as
// probes or the API server, would send to them in clear after the guard is removed.
func drain(ctx context.Context, s *session.Session) error {
	if err := cordon(ctx, s, true); err != nil {
		return err
	}
	if err := s.DropPair(ctx); err != nil {
		return err
	}
	s.WaitLeft()
	return remote.Until(ctx, "no pod has an address of the cluster", deletion,
		func(ctx context.Context) error {
			pods, err := s.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			for _, p := range pods.Items {
				if p.Spec.HostNetwork || p.Spec.NodeName == "" {
					continue
				}
				if p.DeletionTimestamp == nil {
					err = errors.Join(err, s.Client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name,
						metav1.DeleteOptions{}))
				}
				err = errors.Join(err, fmt.Errorf("pod %s/%s is still there", p.Namespace, p.Name))
			}
			return err
		})
}

// deletion is the time limit for the end of all pods.
const deletion = 3 * time.Minute

// Reinstall applies the daemons first and their RBAC rights later. The daemons must wait with the
// guard closed, and continue once they have the rights.
func Reinstall(ctx context.Context, s *session.Session) error {
	last := []string{"ServiceAccount", "ConfigMap", "DaemonSet"}
	if err := applySome(ctx, s, func(kind string) bool {
		return slices.Contains(last, kind)
	}); err != nil {
		return err
	}

	// Wait until the daemons run, so that the API server has refused them.
	err := remote.Until(ctx, "daemons without rights run", session.Installing,
		func(ctx context.Context) error {
			pods, err := s.Client.CoreV1().Pods(metav1.NamespaceSystem).List(ctx,
				metav1.ListOptions{LabelSelector: session.ComponentLabel + "=" + session.VeildSet})
			if err != nil {
				return err
			}
			started := 0
			for _, p := range pods.Items {
				for _, c := range p.Status.ContainerStatuses {
					if c.State.Running != nil || c.RestartCount > 0 {
						started++
					}
				}
			}
			if started == 0 || started < len(pods.Items) {
				return fmt.Errorf("%d of %d have started", started, len(pods.Items))
			}
			return nil
		})
	if err != nil {
		return err
	}

	if err := notReady(ctx, s); err != nil {
		return fmt.Errorf("while the daemons have no rights: %w", err)
	}
	if err := applyAll(ctx, s, "-k", s.Manifests); err != nil {
		return err
	}
	a, b, err := s.TwoPods(ctx)
	if err != nil {
		return err
	}

	return session.TalkBoth(ctx, a, b)
}
