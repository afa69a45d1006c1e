package pods

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/cluster/network/session"
	"github.com/kubeveil/kubeveil/e2e/lab/apiobject"
	"github.com/kubeveil/kubeveil/internal/toolresult"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// PolicyRolled restarts every veild while policies allow one client to reach a server and forbid
// another. Forbidden attempts must never succeed, and most allowed ones must. Before and after the
// restart, veilctl must report that all nodes enforce the policies, and at the end it must show the
// traffic of all nodes. The case enables policies and disables them at its end.
func PolicyRolled(ctx context.Context, s *session.Session) (err error) {
	a, b, err := s.TwoPods(ctx)
	if err != nil {
		return err
	}
	if err := enforcedNowhere(ctx, s); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, s.ApplyDaemons(context.WithoutCancel(ctx), s.Manifests))
	}()
	if err := enforcePolicies(ctx, s); err != nil {
		return err
	}
	allowed, forbidden, err := startTries(ctx, s, a.Node, b.Node)
	if err != nil {
		return err
	}
	if err := enforcedEverywhere(ctx, s); err != nil {
		return err
	}
	old, err := s.PodsOf(ctx, session.VeildSet)
	if err != nil {
		return err
	}
	before, err := readTries(ctx, allowed)
	if err != nil {
		return err
	}

	began := time.Now()
	if err := s.Restart(ctx, session.VeildSet); err != nil {
		return err
	}
	s.Note("%d pods of veild replaced in %s", len(old), time.Since(began).Round(time.Second))

	// Read the attempts during the rollout, and some after it.
	var reached, refused []tries
	err = session.AtOnce(
		func() (err error) { reached, err = goesOn(ctx, allowed); return err },
		func() (err error) { refused, err = goesOn(ctx, forbidden); return err },
	)
	if err != nil {
		return err
	}
	reached = since(before, reached)
	s.Note("allowed: %v", reached)
	s.Note("forbidden: %v", refused)

	after, err := s.PodsOf(ctx, session.VeildSet)
	return errors.Join(err, session.Replaced(session.VeildSet, old, after), mostlyAnswered(reached),
		neverAnswered(refused), enforcedEverywhere(ctx, s), observed(ctx, s, allowed, forbidden))
}

// startTries makes the policies, then an echo server on the node server and two clients on the node
// clients. The clients repeatedly try to reach the server: the policies allow the first and forbid
// the second. startTries returns once the first client is answered and the second has tried.
func startTries(ctx context.Context, s *session.Session, clients, server string) (allowed,
	forbidden *remote.Pod, err error) {
	n, err := s.OwnNamespace(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, p := range policies() {
		if _, err := s.Client.NetworkingV1().NetworkPolicies(n.Name).Create(ctx, p,
			metav1.CreateOptions{}); err != nil {
			return nil, nil, fmt.Errorf("make network policy %s: %w", p.Name, err)
		}
	}

	echo := &remote.Pod{Name: "server", Node: server}
	if err := n.Run(ctx, echo); err != nil {
		return nil, nil, err
	}
	var to []string
	for _, addr := range echo.Addrs {
		to = append(to, netip.AddrPortFrom(addr, remote.EchoPort).String())
	}
	client := func(name string) *remote.Pod {
		return &remote.Pod{Name: name, Node: clients,
			Args: []string{"echo-try", "--interval", session.FlowInterval.String(),
				"--to", strings.Join(to, ",")},
			// Do not restart the container, because its counts would begin again.
			Change: func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }}
	}
	allowed, forbidden = client("allowed"), client("forbidden")
	if err := n.RunAll(ctx, allowed, forbidden); err != nil {
		return nil, nil, err
	}

	err = remote.Until(ctx, "the allowed client is answered", session.Meeting,
		func(ctx context.Context) error {
			now, err := readTries(ctx, allowed)
			if err != nil {
				return err
			}
			return eachTried(now, func(t tries) bool { return t.Answered > 0 })
		})
	if err != nil {
		return nil, nil, err
	}
	_, err = goesOn(ctx, forbidden)
	return allowed, forbidden, err
}

// policies returns policies that deny all traffic to the pods of their namespace, except from the
// pod allowed to the pod server.
func policies() []*networkingv1.NetworkPolicy {
	pod := func(name string) metav1.LabelSelector {
		return metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	}
	allowed := pod("allowed")
	ingress := []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
	return []*networkingv1.NetworkPolicy{
		{ObjectMeta: metav1.ObjectMeta{Name: "deny-all"},
			Spec: networkingv1.NetworkPolicySpec{PolicyTypes: ingress}},
		{ObjectMeta: metav1.ObjectMeta{Name: "server"},
			Spec: networkingv1.NetworkPolicySpec{PolicyTypes: ingress, PodSelector: pod("server"),
				Ingress: []networkingv1.NetworkPolicyIngressRule{{
					From: []networkingv1.NetworkPolicyPeer{{PodSelector: &allowed}}}}}},
	}
}

// tries is the output of veil-tools echo-try for one echo server.
type tries toolresult.Tried

// String returns the counts for notes and errors.
func (t tries) String() string {
	return fmt.Sprintf("%s to %s: %d of %d answered", t.Proto, t.To, t.Answered, t.Tried)
}

func readTries(ctx context.Context, pod *remote.Pod) (now []tries, err error) {
	if err := session.LastLine(ctx, pod, &now); err != nil {
		return nil, err
	}
	if len(now) == 0 {
		return nil, fmt.Errorf("pod %s printed no attempts", pod.Name)
	}
	return now, nil
}

// goesOn waits until a pod has made a further attempt to reach each server, and returns the counts.
func goesOn(ctx context.Context, pod *remote.Pod) (after []tries, err error) {
	var before []tries
	err = remote.Until(ctx, "tries of "+pod.Name, session.Meeting, func(ctx context.Context) error {
		now, err := readTries(ctx, pod)
		if err != nil {
			return err
		}
		if before == nil {
			before = now
		}
		for i, t := range now {
			if t.Tried == before[i].Tried {
				return fmt.Errorf("%v, no further attempt", t)
			}
		}
		after = now
		return nil
	})
	return after, err
}

// since returns the counts of after less those of before.
func since(before, after []tries) []tries {
	out := slices.Clone(after)
	for i := range out {
		out[i].Tried -= before[i].Tried
		out[i].Answered -= before[i].Answered
	}
	return out
}

// eachTried returns an error that lists the tries for which good returns false.
func eachTried(all []tries, good func(tries) bool) error {
	var errs []error
	for _, t := range all {
		if !good(t) {
			errs = append(errs, fmt.Errorf("%v, last %q", t, t.Error))
		}
	}
	return errors.Join(errs...)
}

// neverAnswered returns an error if an attempt was answered, or if a server was not tried at all.
func neverAnswered(all []tries) error {
	if err := eachTried(all, func(t tries) bool { return t.Tried > 0 && t.Answered == 0 }); err !=
		nil {
		return fmt.Errorf("forbidden attempts: %w", err)
	}
	return nil
}

// mostlyAnswered returns an error unless three of four attempts were answered. Some may fail,
// because an emulated node that starts a container answers slowly.
func mostlyAnswered(all []tries) error {
	if err := eachTried(all, func(t tries) bool {
		return t.Answered > 0 && 4*t.Answered >= 3*t.Tried
	}); err != nil {
		return fmt.Errorf("allowed attempts: %w", err)
	}
	return nil
}

// enforcePolicies applies the manifests with the component policy, as in docs/how-to/policies.md.
func enforcePolicies(ctx context.Context, s *session.Session) error {
	dir := filepath.Join(s.Dir, "with-policy")
	if err := apiobject.WriteOverlay(dir, s.Manifests, []string{"policy"}); err != nil {
		return fmt.Errorf("manifests with policies: %w", err)
	}
	return s.ApplyDaemons(ctx, dir)
}
