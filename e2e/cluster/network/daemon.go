package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/pkg/remote"
)

// gapOfNothing is how long a flow may be without an answer while nothing is done to the data path:
// processors are shared, in emulated machines with a container that starts.
const gapOfNothing = 10 * time.Second

// rolling bounds the rollout of a DaemonSet.
const rolling = 4 * time.Minute

// load is flows from pods on both nodes to the shared pods on the other, by address and by service.
func (s *Session) load(ctx context.Context) ([]*flows, error) {
	a, b, err := s.twoPods(ctx)
	if err != nil {
		return nil, err
	}
	service, err := s.serve(ctx, "b", corev1.ServiceTypeClusterIP)
	if err != nil {
		return nil, err
	}

	at := func(lists ...[]netip.Addr) (out []netip.AddrPort) {
		for _, list := range lists {
			for _, addr := range list {
				out = append(out, netip.AddrPortFrom(addr, remote.EchoPort))
			}
		}
		return out
	}

	// A name is learned by proxies when they like.
	if err := talk(ctx, a, service.Port, service.Addrs...); err != nil {
		return nil, err
	}

	// Made before, since two at once would make two.
	if _, err := s.namespace(ctx); err != nil {
		return nil, err
	}

	var there, back *flows
	err = atOnce(
		func() (err error) {
			there, err = s.startFlows(ctx, "flows-there", a.Node, at(b.Addrs, service.Addrs)...)
			return err
		},
		func() (err error) {
			back, err = s.startFlows(ctx, "flows-back", b.Node, at(a.Addrs)...)
			return err
		},
	)

	return []*flows{there, back}, err
}

// held returns an error unless all connections lived.
func (s *Session) held(ctx context.Context, all []*flows, gap time.Duration) error {
	var errs []error
	for _, f := range all {
		errs = append(errs, f.held(ctx, s, gap))
	}
	return errors.Join(errs...)
}

// daemonRolled restarts every veild as kubectl rollout restart does, under load. veil-wg, which
// carries packets where the kernel has no WireGuard, must not be touched by it.
func daemonRolled(ctx context.Context, s *Session) error {
	all, err := s.load(ctx)
	if err != nil {
		return err
	}
	wg, err := s.podsOf(ctx, wgSet)
	if err != nil {
		return err
	}
	old, err := s.podsOf(ctx, veildSet)
	if err != nil {
		return err
	}

	began := time.Now()
	if err := s.restart(ctx, veildSet); err != nil {
		return err
	}

	s.note("%d pods of veild replaced in %s", len(old), time.Since(began).Round(time.Second))
	errs := []error{s.held(ctx, all, gapOfNothing)}
	after, err := s.podsOf(ctx, veildSet)

	errs = append(errs, err, replaced(veildSet, old, after))

	after, err = s.podsOf(ctx, wgSet)
	errs = append(errs, err)
	for node, uid := range after {
		if wg[node] != uid {
			errs = append(errs, fmt.Errorf("veil-wg of %s was replaced", node))
		}
	}

	return errors.Join(errs...)
}

// replaced is an error that names the nodes whose pod of a DaemonSet is an old one.
func replaced(set string, old, after map[string]string) error {
	var errs []error
	for node, uid := range after {
		if old[node] == uid {
			errs = append(errs, fmt.Errorf("%s of %s was not replaced", set, node))
		}
	}
	return errors.Join(errs...)
}

// podsOf returns the pod of each node of a DaemonSet, by the uid and the number of starts of its
// container.
func (s *Session) podsOf(ctx context.Context, set string) (map[string]string, error) {
	pods, err := s.Client.CoreV1().Pods(metav1.NamespaceSystem).List(ctx,
		metav1.ListOptions{LabelSelector: component + "=" + set})
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, p := range pods.Items {
		starts := int32(0)
		for _, c := range p.Status.ContainerStatuses {
			starts += c.RestartCount
		}
		if p.DeletionTimestamp == nil {
			out[p.Spec.NodeName] = fmt.Sprintf("%s/%d", p.UID, starts)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("DaemonSet %s has no pods", set)
	}
	return out, nil
}

// restart replaces every pod of a DaemonSet and waits until the new ones are Ready.
func (s *Session) restart(ctx context.Context, set string) error {
	patch := fmt.Appendf(nil,
		`{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":%q}}}}}`, time.Now().Format(time.RFC3339Nano))
	sets := s.Client.AppsV1().DaemonSets(metav1.NamespaceSystem)
	if _, err := sets.Patch(ctx, set, "application/strategic-merge-patch+json", patch,
		metav1.PatchOptions{}); err != nil {
		return err
	}
	return remote.Until(ctx, "rollout of "+set, rolling, func(ctx context.Context) error {
		got, err := sets.Get(ctx, set, metav1.GetOptions{})
		if err != nil {
			return err
		}
		return rolledOut(got)
	})
}

// rolledOut returns nil when all pods of a DaemonSet have its newest template and are Ready.
func rolledOut(set *appsv1.DaemonSet) error {
	st := set.Status
	if st.ObservedGeneration < set.Generation ||
		st.UpdatedNumberScheduled < st.DesiredNumberScheduled ||
		st.NumberReady < st.DesiredNumberScheduled {
		return fmt.Errorf("%d of %d are new, %d Ready", st.UpdatedNumberScheduled,
			st.DesiredNumberScheduled, st.NumberReady)
	}
	return nil
}
