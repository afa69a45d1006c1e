package nodes

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

	"github.com/kubeveil/kubeveil/e2e/cluster/network/session"
	"github.com/kubeveil/kubeveil/pkg/leak"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// ClearNetwork is the control run: pods over the reference network, whose plaintext must be seen.
func ClearNetwork(ctx context.Context, s *session.Session) error {
	return s.ControlRun(func() error { return talkInClear(ctx, s) })
}

// talkInClear installs the reference network, lets two pods talk and takes all of it away.
func talkInClear(ctx context.Context, s *session.Session) error {
	nodes, err := s.LinuxNodes(ctx)
	if err != nil {
		return err
	}
	// Nothing but the pods of this case is to start on it.
	if err := cordon(ctx, s, true); err != nil {
		return err
	}
	if err := s.Lab.Clear(ctx); err != nil {
		return err
	}
	n, err := s.OwnNamespace(ctx)
	if err != nil {
		return err
	}
	a, b := &remote.Pod{Name: "a", Node: nodes[0]}, &remote.Pod{Name: "b", Node: nodes[1]}
	err = session.AtOnce(func() error { return n.Run(ctx, a) },
		func() error { return n.Run(ctx, b) })
	if err == nil {
		err = seenInClear(ctx, s, a, b)
	}
	// The pods go before the plugin that has to remove their links.
	return errors.Join(err, s.CloseOwn(ctx), s.Lab.Unclear(ctx), waitNotReady(ctx, s),
		cordon(ctx, s, false))
}

// seenInClear lets a pod talk to another in each family. It is an error unless the oracle sees the
// payload of each.
func seenInClear(ctx context.Context, s *session.Session, a, b *remote.Pod) error {
	if err := s.BothFamilies(b.Addrs); err != nil {
		return err
	}
	for _, addr := range b.Addrs {
		if err := session.Talk(ctx, a, remote.EchoPort, addr); err != nil {
			return err
		}
		seen, err := s.Lab.Oracle().Take()
		s.AddControl(seen)
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
func waitNotReady(ctx context.Context, s *session.Session) error {
	return remote.Until(ctx, "nodes without a network are not Ready", session.Meeting,
		func(ctx context.Context) error { return notReady(ctx, s) })
}

// notReady is an error that names a node with a kubelet that is Ready.
func notReady(ctx context.Context, s *session.Session) error {
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

func cordon(ctx context.Context, s *session.Session, yes bool) error {
	names, err := s.LinuxNodes(ctx)
	for _, name := range names {
		patch := fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, yes)
		_, e := s.Client.CoreV1().Nodes().Patch(ctx, name, "application/merge-patch+json", patch,
			metav1.PatchOptions{})
		err = errors.Join(err, e)
	}
	return err
}

// Install applies what an apply that was cut off before the daemons would have, and then all of it.
// Nodes become Ready by it, and not before.
func Install(ctx context.Context, s *session.Session) error {
	var err error
	if s.Before, err = s.Inventories(ctx); err != nil {
		return err
	}
	if err := applySome(ctx, s, func(kind string) bool {
		return kind != "ConfigMap" && kind != "DaemonSet"
	}); err != nil {
		return err
	}
	if err := notReady(ctx, s); err != nil {
		return fmt.Errorf("before there are daemons: %w", err)
	}
	if err := applyAll(ctx, s); err != nil || s.Lab == nil {
		return err
	}
	return asPlanned(ctx, s)
}

// asPlanned returns an error unless the lab's nodes are of the kinds that its cases need. Kubelets
// must have both generations of containerd and tunnels of the kernel's WireGuard. The control
// plane's host must have a tunnel in userspace, and runs no pods. Each node has published its own
// key.
func asPlanned(ctx context.Context, s *session.Session) error {
	nodes, err := s.Nodes(ctx)
	if err != nil {
		return err
	}
	claims, err := s.Claims("")
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
			errs = append(errs, fmt.Errorf("%s runs no pods, but has no taint for that",
				n.Name))
		}
		claim, err := claims.Get(ctx, n.Name, metav1.GetOptions{})
		if err != nil {
			errs = append(errs, err)
		} else if keys, _, _ := unstructured.NestedSlice(claim.Object, "spec",
			"keys"); len(keys) == 0 {
			errs = append(errs, fmt.Errorf("VeilNode %s has no key", n.Name))
		}
		errs = append(errs, tunnelOf(ctx, s, n.Name, linux))
	}

	for _, generation := range []string{"containerd://1.6.", "containerd://2."} {
		if !slices.ContainsFunc(runtimes,
			func(r string) bool { return strings.HasPrefix(r, generation) }) {
			errs = append(errs, fmt.Errorf("no node has %s: they have %v", generation, runtimes))
		}
	}

	s.Note("runtimes %v", runtimes)
	return errors.Join(errs...)
}

// tunnelOf returns an error unless a node's tunnel is of the wanted kind: the kernel's WireGuard
// and in the flow table, or the worker's.
func tunnelOf(ctx context.Context, s *session.Session, node string, kernel bool) error {
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
func applyAll(ctx context.Context, s *session.Session) error {
	began := time.Now()
	if _, err := s.RunKubectl(ctx, "apply", "-k", s.Manifests); err != nil {
		return err
	}
	names, err := s.LinuxNodes(ctx)
	if err != nil {
		return err
	}
	if err := cordon(ctx, s, false); err != nil {
		return err
	}
	if err := s.WaitNodesReady(ctx, session.Installing, names...); err != nil {
		return err
	}
	s.Note("apply to all nodes Ready in %.1f s", time.Since(began).Seconds())
	// A node is Ready when its CNI configuration is there; the daemons of the others may still be
	// starting.
	if err := s.Rollout(ctx, session.VeildSet); err != nil {
		return err
	}
	return s.Rollout(ctx, "kube-proxy")
}

// applySome applies the objects of the manifests of some kinds, in their order.
func applySome(ctx context.Context, s *session.Session, wanted func(kind string) bool) error {
	all, err := s.RunKubectl(ctx, "kustomize", s.Manifests)
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
	s.Note("%d objects applied first", len(some))
	_, err = s.RunKubectl(ctx, "apply", "-f", path)
	return err
}
