package network

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

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// policyRolled restarts every veild while policies let one client reach a server. A forbidden
// connection must never succeed, and most allowed ones must. Before and after it veilctl reports
// that all nodes enforce them. Policies are enforced for the case only.
func policyRolled(ctx context.Context, s *Session) (err error) {
	a, b, err := s.twoPods(ctx)
	if err != nil {
		return err
	}
	if err := s.enforcedNowhere(ctx); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, s.applyDaemons(context.WithoutCancel(ctx), s.Manifests))
	}()
	if err := s.enforcePolicies(ctx); err != nil {
		return err
	}
	allowed, forbidden, err := s.startTries(ctx, a.Node, b.Node)
	if err != nil {
		return err
	}
	if err := s.enforcedEverywhere(ctx); err != nil {
		return err
	}
	old, err := s.podsOf(ctx, veildSet)
	if err != nil {
		return err
	}
	before, err := readTries(ctx, allowed)
	if err != nil {
		return err
	}

	began := time.Now()
	if err := s.restart(ctx, veildSet); err != nil {
		return err
	}
	s.note("%d pods of veild replaced in %s", len(old), time.Since(began).Round(time.Second))

	// Tries during the rollout, and some after it.
	var reached, refused []tries
	err = atOnce(
		func() (err error) { reached, err = goesOn(ctx, allowed); return err },
		func() (err error) { refused, err = goesOn(ctx, forbidden); return err },
	)
	if err != nil {
		return err
	}
	reached = since(before, reached)
	s.note("allowed: %v", reached)
	s.note("forbidden: %v", refused)

	after, err := s.podsOf(ctx, veildSet)
	return errors.Join(err, replaced(veildSet, old, after), mostlyAnswered(reached),
		neverAnswered(refused), s.enforcedEverywhere(ctx))
}

// startTries makes the policies, then an echo server on one node and two clients on another that
// try to reach it: the policies allow the first and forbid the second. It returns when the first
// is answered and the second has tried.
func (s *Session) startTries(ctx context.Context, clients, server string) (allowed,
	forbidden *remote.Pod, err error) {
	n, err := s.namespace(ctx)
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
			Args: []string{"echo-try", "--interval", flowInterval.String(),
				"--to", strings.Join(to, ",")},
			// The counts begin again with the container.
			Change: func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }}
	}
	allowed, forbidden = client("allowed"), client("forbidden")
	if err := n.RunAll(ctx, allowed, forbidden); err != nil {
		return nil, nil, err
	}

	err = remote.Until(ctx, "the allowed client is answered", meeting,
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

// policies deny all that is sent to the pods of their namespace but for what the pod allowed sends
// to the pod server.
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
type tries struct {
	Proto    string `json:"proto"`
	To       string `json:"to"`
	Tried    uint64 `json:"tried"`
	Answered uint64 `json:"answered"`
	Error    string `json:"error"`
}

// String is for people.
func (t tries) String() string {
	return fmt.Sprintf("%s to %s: %d of %d answered", t.Proto, t.To, t.Answered, t.Tried)
}

func readTries(ctx context.Context, pod *remote.Pod) (now []tries, err error) {
	if err := lastLine(ctx, pod, &now); err != nil {
		return nil, err
	}
	if len(now) == 0 {
		return nil, fmt.Errorf("pod %s tries nothing", pod.Name)
	}
	return now, nil
}

// goesOn waits until a pod has tried each server more often than now, and returns its tries then.
func goesOn(ctx context.Context, pod *remote.Pod) (after []tries, err error) {
	var before []tries
	err = remote.Until(ctx, "tries of "+pod.Name, meeting, func(ctx context.Context) error {
		now, err := readTries(ctx, pod)
		if err != nil {
			return err
		}
		if before == nil {
			before = now
		}
		for i, t := range now {
			if t.Tried == before[i].Tried {
				return fmt.Errorf("%v, none since", t)
			}
		}
		after = now
		return nil
	})
	return after, err
}

// since returns what was tried after before.
func since(before, after []tries) []tries {
	out := slices.Clone(after)
	for i := range out {
		out[i].Tried -= before[i].Tried
		out[i].Answered -= before[i].Answered
	}
	return out
}

// eachTried is an error that names the tries of which good does not hold.
func eachTried(all []tries, good func(tries) bool) error {
	var errs []error
	for _, t := range all {
		if !good(t) {
			errs = append(errs, fmt.Errorf("%v, last %q", t, t.Error))
		}
	}
	return errors.Join(errs...)
}

// neverAnswered is an error if there was an answer, or nothing that could have been answered.
func neverAnswered(all []tries) error {
	if err := eachTried(all, func(t tries) bool { return t.Tried > 0 && t.Answered == 0 }); err !=
		nil {
		return fmt.Errorf("what the policies forbid: %w", err)
	}
	return nil
}

// mostlyAnswered is an error unless three of four tries were answered: an emulated node that
// starts a container is slow to answer.
func mostlyAnswered(all []tries) error {
	if err := eachTried(all, func(t tries) bool {
		return t.Answered > 0 && 4*t.Answered >= 3*t.Tried
	}); err != nil {
		return fmt.Errorf("what the policies allow: %w", err)
	}
	return nil
}

// enforcePolicies adds the component policy to the installation, as in docs/how-to/policies.md.
func (s *Session) enforcePolicies(ctx context.Context) error {
	dir := filepath.Join(s.Dir, "with-policy")
	if err := lab.WriteOverlay(dir, s.Manifests, []string{"policy"}); err != nil {
		return fmt.Errorf("manifests with policies: %w", err)
	}
	return s.applyDaemons(ctx, dir)
}

// applyDaemons applies a folder of manifests and waits until every veild is of it.
func (s *Session) applyDaemons(ctx context.Context, dir string) error {
	if _, err := s.kubectl(ctx, "apply", "-k", dir); err != nil {
		return err
	}
	return s.rollout(ctx, veildSet)
}
