package network

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/kubeveil/kubeveil/pkg/leak"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// installing bounds the time from apply until all nodes are Ready: an emulated machine starts
// containers slowly.
const installing = 6 * time.Minute

// clearNetwork is the control run: pods over the reference network, in a part of the run of its
// own, whose plaintext must be seen by the same oracle on the same wire.
func clearNetwork(ctx context.Context, s *Session) error {
	wire := s.Lab.Oracle()
	before, err := wire.Take()
	if err != nil {
		return err
	}
	s.parts.before, s.parts.ran = before, true
	s.control = true
	defer func() { s.control = false }()
	err = s.talkInClear(ctx)
	// Also after an error: what follows must not be counted as that of the reference network.
	after, takeErr := wire.Take()
	s.parts.control = s.parts.control.Plus(after)
	s.note("%d of %d frames are plaintext: %v", s.parts.control.Plaintext, s.parts.control.Frames,
		s.parts.control.Kinds)
	return errors.Join(err, takeErr)
}

// talkInClear installs the reference network, lets two pods talk and takes all of it away.
func (s *Session) talkInClear(ctx context.Context) error {
	nodes, err := s.linuxNodes(ctx)
	if err != nil {
		return err
	}
	// Nothing but the pods of this case is to start on it.
	if err := s.cordon(ctx, true); err != nil {
		return err
	}
	if err := s.Lab.Clear(ctx); err != nil {
		return err
	}
	n, err := s.namespace(ctx)
	if err != nil {
		return err
	}
	a, b := &remote.Pod{Name: "a", Node: nodes[0]}, &remote.Pod{Name: "b", Node: nodes[1]}
	err = atOnce(func() error { return n.Run(ctx, a) }, func() error { return n.Run(ctx, b) })
	if err == nil {
		err = s.seenInClear(ctx, a, b)
	}
	// The pods go before the plugin that has to remove their links.
	s.own = nil
	return errors.Join(err, n.Close(ctx), s.Lab.Unclear(ctx), s.waitNotReady(ctx),
		s.cordon(ctx, false))
}

// seenInClear lets a pod talk to another in each family. It is an error unless the oracle sees the
// payload of each.
func (s *Session) seenInClear(ctx context.Context, a, b *remote.Pod) error {
	if err := s.bothFamilies(b.Addrs); err != nil {
		return err
	}
	for _, addr := range b.Addrs {
		if err := talk(ctx, a, remote.EchoPort, addr); err != nil {
			return err
		}
		seen, err := s.Lab.Oracle().Take()
		s.parts.control = s.parts.control.Plus(seen)
		if err != nil {
			return err
		}
		if seen.Kinds[leak.LeakCanary] == 0 {
			return fmt.Errorf("the oracle saw no payload in clear to %s: it proves nothing", addr)
		}
	}
	return nil
}

// waitNotReady waits until every kubelet has noticed that it has no network.
func (s *Session) waitNotReady(ctx context.Context) error {
	return remote.Until(ctx, "nodes without a network are not Ready", meeting, s.notReady)
}

// notReady is an error that names a node with a kubelet that is Ready.
func (s *Session) notReady(ctx context.Context) error {
	nodes, err := s.Nodes(ctx)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		if n.Ready && n.Object.Labels[corev1.LabelOSStable] == "linux" {
			return fmt.Errorf("node %s is Ready", n.Name)
		}
	}
	return nil
}

// linuxNodes are the names of all nodes that have a kubelet.
func (s *Session) linuxNodes(ctx context.Context) ([]string, error) {
	nodes, err := s.Nodes(ctx)
	var names []string
	for _, n := range nodes {
		if n.Object.Labels[corev1.LabelOSStable] == "linux" {
			names = append(names, n.Name)
		}
	}
	return names, err
}

func (s *Session) cordon(ctx context.Context, yes bool) error {
	names, err := s.linuxNodes(ctx)
	for _, name := range names {
		patch := fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, yes)
		_, e := s.Client.CoreV1().Nodes().Patch(ctx, name, "application/merge-patch+json", patch,
			metav1.PatchOptions{})
		err = errors.Join(err, e)
	}
	return err
}

// install applies what an apply that was cut off before the daemons would have, and then all of it.
// Nodes become Ready by it, and not before.
func install(ctx context.Context, s *Session) error {
	var err error
	if s.before, err = s.inventories(ctx); err != nil {
		return err
	}
	if err := s.applySome(ctx, func(kind string) bool {
		return kind != "ConfigMap" && kind != "DaemonSet"
	}); err != nil {
		return err
	}
	if err := s.notReady(ctx); err != nil {
		return fmt.Errorf("before there are daemons: %w", err)
	}
	if err := s.applyAll(ctx); err != nil || s.Lab == nil {
		return err
	}
	return s.asPlanned(ctx)
}

// asPlanned is an error when the lab's nodes are not of the kinds that its cases are about:
// kubelets of both generations of containerd with tunnels of the kernel's WireGuard, and the
// control plane's host with one in userspace, which runs no pods. Each has said which key is its
// own.
func (s *Session) asPlanned(ctx context.Context) error {
	nodes, err := s.Nodes(ctx)
	if err != nil {
		return err
	}
	claims, err := s.claims("")
	if err != nil {
		return err
	}

	var errs []error
	var runtimes []string
	for _, n := range nodes {
		linux := n.Object.Labels[corev1.LabelOSStable] == "linux"
		if linux {
			runtimes = append(runtimes, n.Object.Status.NodeInfo.ContainerRuntimeVersion)
		} else if !slices.ContainsFunc(n.Object.Spec.Taints, func(t corev1.Taint) bool {
			return t.Effect == corev1.TaintEffectNoSchedule
		}) {
			errs = append(errs, fmt.Errorf("%s runs no pods, but has no taint that says so",
				n.Name))
		}
		claim, err := claims.Get(ctx, n.Name, metav1.GetOptions{})
		if err != nil {
			errs = append(errs, err)
		} else if keys, _, _ := unstructured.NestedSlice(claim.Object, "spec",
			"keys"); len(keys) == 0 {
			errs = append(errs, fmt.Errorf("VeilNode %s has no key", n.Name))
		}
		errs = append(errs, s.tunnelOf(ctx, n.Name, linux))
	}

	for _, generation := range []string{"containerd://1.6.", "containerd://2."} {
		if !slices.ContainsFunc(runtimes,
			func(r string) bool { return strings.HasPrefix(r, generation) }) {
			errs = append(errs, fmt.Errorf("no node has %s: they have %v", generation, runtimes))
		}
	}

	s.note("runtimes %v", runtimes)
	return errors.Join(errs...)
}

// tunnelOf is an error unless a node's tunnel is of the kind that is wanted: the kernel's
// WireGuard, and in the flow table, or the worker's.
func (s *Session) tunnelOf(ctx context.Context, node string, kernel bool) error {
	link, err := s.Lab.Exec(ctx, node, "ip -d link show veil0")
	if err != nil {
		return err
	}
	if strings.Contains(string(link), "wireguard") != kernel {
		return fmt.Errorf("%s: by the kernel's WireGuard was to be %t, but the tunnel is\n%s", node,
			kernel, link)
	}
	if !kernel {
		return nil
	}
	// veild lets a link join as it hears of it.
	if out, err := s.Lab.Exec(ctx, node,
		"for i in $(seq 20); do nft list flowtables | grep -q veil0 && exit 0; sleep .5; done; "+
			"nft list flowtables; exit 1"); err != nil {
		return fmt.Errorf("%s: its tunnel did not join the flow table: %w: %s", node, err, out)
	}
	return nil
}

// applyAll applies the manifests and waits until every node is Ready.
func (s *Session) applyAll(ctx context.Context) error {
	began := time.Now()
	if _, err := s.kubectl(ctx, "apply", "-k", s.Manifests); err != nil {
		return err
	}
	names, err := s.linuxNodes(ctx)
	if err != nil {
		return err
	}
	if err := s.cordon(ctx, false); err != nil {
		return err
	}
	if err := s.WaitNodesReady(ctx, installing, names...); err != nil {
		return err
	}
	s.note("apply to all nodes Ready in %.1f s", time.Since(began).Seconds())
	// A node is Ready when its CNI configuration is there; the daemons of the others may still be
	// starting.
	if _, err := s.kubectl(ctx, "-n", metav1.NamespaceSystem, "rollout", "status",
		"daemonset/"+veildSet, "--timeout="+remote.Patience(ctx, installing).String()); err !=
		nil {
		return err
	}
	_, err = s.kubectl(ctx, "-n", metav1.NamespaceSystem, "rollout", "status",
		"daemonset/kube-proxy", "--timeout="+remote.Patience(ctx, installing).String())
	return err
}

// applySome applies the objects of the manifests of some kinds, in their order.
func (s *Session) applySome(ctx context.Context, wanted func(kind string) bool) error {
	all, err := s.kubectl(ctx, "kustomize", s.Manifests)
	if err != nil {
		return err
	}
	var some []string
	for _, object := range strings.Split(all, "\n---\n") {
		var meta metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(object), &meta); err != nil {
			return fmt.Errorf("what kustomize printed: %w", err)
		}
		if wanted(meta.Kind) {
			some = append(some, object)
		}
	}
	path := filepath.Join(s.Dir, "half.yaml")
	if err := os.WriteFile(path, []byte(strings.Join(some, "\n---\n")), 0o644); err != nil {
		return err
	}
	s.note("%d objects applied first", len(some))
	_, err = s.kubectl(ctx, "apply", "-f", path)
	return err
}

// uninstall takes Kubeveil away as docs/how-to/uninstall.md says, pods first. Nodes must be as
// before it was installed.
func uninstall(ctx context.Context, s *Session) error {
	if s.before == nil {
		return skip("the nodes were not looked at before the installation")
	}
	if err := s.sees(ctx); err != nil {
		return err
	}
	if err := s.drain(ctx); err != nil {
		return err
	}

	began := time.Now()
	for _, words := range [][]string{
		{"-n", metav1.NamespaceSystem, "delete", "daemonset", veildSet, wgSet},
		{"apply", "-k", filepath.Join(s.Manifests, "uninstall")},
		{"-n", metav1.NamespaceSystem, "rollout", "status", "daemonset/kubeveil-cleanup",
			"--timeout=3m"},
		{"delete", "-k", filepath.Join(s.Manifests, "uninstall")},
		{"delete", "-k", s.Manifests, "--ignore-not-found"},
	} {
		if _, err := s.kubectl(ctx, words...); err != nil {
			return err
		}
	}

	s.note("taken away in %.0f s", time.Since(began).Seconds())
	if err := s.waitNotReady(ctx); err != nil {
		return err
	}

	return remote.Until(ctx, "nodes as before the installation", meeting,
		func(ctx context.Context) error {
			after, err := s.inventories(ctx)
			if err != nil {
				return err
			}
			var errs []error
			for node, before := range s.before {
				if left := difference(before, after[node]); len(left) > 0 {
					errs = append(errs, fmt.Errorf("%s:\n%s", node, strings.Join(left, "\n")))
				}
			}
			return errors.Join(errs...)
		})
}

// sees is an error when the inventories of nodes on which Kubeveil is installed do not show it:
// then they would not show what it leaves either.
func (s *Session) sees(ctx context.Context) error {
	now, err := s.inventories(ctx)
	if err != nil {
		return err
	}
	linux, err := s.linuxNodes(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for node, before := range s.before {
		if missing := traces(difference(before, now[node]),
			slices.Contains(linux, node)); len(missing) > 0 {
			errs = append(errs, fmt.Errorf("%s: Kubeveil is installed, and the inventory has no "+
				"line %q more than before", node, missing))
		}
	}
	return errors.Join(errs...)
}

// drain leaves no pod with an address of the cluster: a process of a node that goes on sending to
// one, a probe or the API server, would do so in clear once the guard is gone.
func (s *Session) drain(ctx context.Context) error {
	if err := s.cordon(ctx, true); err != nil {
		return err
	}
	if err := s.dropPair(ctx); err != nil {
		return err
	}
	s.leaving.Wait()
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

// deletion bounds the end of pods.
const deletion = 3 * time.Minute

// reinstall applies the daemons first and their rights later: they must wait, closed, and go on
// when they may.
func reinstall(ctx context.Context, s *Session) error {
	last := []string{"ServiceAccount", "ConfigMap", "DaemonSet"}
	if err := s.applySome(ctx, func(kind string) bool {
		return slices.Contains(last, kind)
	}); err != nil {
		return err
	}

	// Until they run and are refused.
	err := remote.Until(ctx, "daemons without rights run", installing,
		func(ctx context.Context) error {
			pods, err := s.Client.CoreV1().Pods(metav1.NamespaceSystem).List(ctx,
				metav1.ListOptions{LabelSelector: component + "=" + veildSet})
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

	if err := s.notReady(ctx); err != nil {
		return fmt.Errorf("while the daemons have no rights: %w", err)
	}
	if err := s.applyAll(ctx); err != nil {
		return err
	}
	a, b, err := s.twoPods(ctx)
	if err != nil {
		return err
	}

	return talkBoth(ctx, a, b)
}
