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

// ClearNetwork is the control run. Pods talk over the reference network, and the oracle must see
// their plaintext.
func ClearNetwork(ctx context.Context, s *session.Session) error {
	return s.ControlRun(func() error { return talkInClear(ctx, s) })
}

// talkInClear installs the reference network, makes two pods talk, and removes pods and network.
func talkInClear(ctx context.Context, s *session.Session) error {
	nodes, err := s.LinuxNodes(ctx)
	if err != nil {
		return err
	}
	// Only the pods of this case may start on the reference network.
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
	// Remove the pods before the network: its plugin must remove their links.
	return errors.Join(err, s.CloseOwn(ctx), s.Lab.Unclear(ctx), waitNotReady(ctx, s),
		cordon(ctx, s, false))
}

// seenInClear makes pod a talk to pod b in each family. It returns an error unless the oracle sees
// the payload in each family.
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
			return fmt.Errorf("the oracle saw no payload in clear to %s, so its results "+
				"prove nothing", addr)
		}
	}
	return nil
}

// waitNotReady waits until no node with a kubelet is Ready, because it has no network.
func waitNotReady(ctx context.Context, s *session.Session) error {
	return remote.Until(ctx, "nodes without a network are not Ready", session.Meeting,
		func(ctx context.Context) error { return notReady(ctx, s) })
}

// notReady returns an error if a node with a kubelet is Ready.
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

// Install applies the manifests without the daemons, like an interrupted apply, and then all
// manifests. Nodes must become Ready after the second apply, and not before.
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
		return fmt.Errorf("without daemons: %w", err)
	}
	if err := applyAll(ctx, s, "-k", s.Manifests); err != nil || s.Lab == nil {
		return err
	}
	return asPlanned(ctx, s)
}

// asPlanned returns an error unless the lab's nodes are of the kinds that the cases need. The nodes
// with kubelets must have both generations of containerd and tunnels of the kernel's WireGuard. The
// control plane's host must have a tunnel in userspace, and a taint, because it runs no pods. Each
// node must have published a key.
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
// and in the flow table if kernel is set, otherwise veil-wg's.
func tunnelOf(ctx context.Context, s *session.Session, node string, kernel bool) error {
	link, err := s.Lab.Exec(ctx, node, "ip -d link show veil0")
	if err != nil {
		return err
	}
	if strings.Contains(string(link), "wireguard") != kernel {
		return fmt.Errorf("%s: want a tunnel of the kernel's WireGuard: %t, but it is\n%s", node,
			kernel, link)
	}
	if !kernel {
		return nil
	}
	// veild adds a link to the flow table when it notices the link, so wait.
	if out, err := s.Lab.Exec(ctx, node,
		"for i in $(seq 20); do nft list flowtables | grep -q veil0 && exit 0; sleep .5; done; "+
			"nft list flowtables; exit 1"); err != nil {
		return fmt.Errorf("%s: its tunnel did not join the flow table: %w: %s", node, err, out)
	}
	return nil
}

// applyAll applies manifests, which are arguments of kubectl apply, and waits until every node is
// Ready.
func applyAll(ctx context.Context, s *session.Session, manifests ...string) error {
	began := time.Now()
	if _, err := s.RunKubectl(ctx, append([]string{"apply"}, manifests...)...); err != nil {
		return err
	}
	if err := waitInstalled(ctx, s); err != nil {
		return err
	}
	s.Note("apply to all nodes Ready in %.1f s", time.Since(began).Seconds())
	return nil
}

// waitInstalled lets nodes take pods, and waits until every node is Ready.
func waitInstalled(ctx context.Context, s *session.Session) error {
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
	// A node is Ready once it has a CNI configuration. Daemons of other nodes may still be
	// starting.
	if err := s.Rollout(ctx, session.VeildSet); err != nil {
		return err
	}
	return s.Rollout(ctx, "kube-proxy")
}

// applySome applies the objects of the manifests whose kind is wanted, in their order.
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
