package nodes

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/cluster/network/session"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// tcxSince is the first Linux on which the guard attaches by tcx. There a qdisc cannot displace it.
var tcxSince = [2]int{6, 6}

// oddLink is a link that cannot have filters at egress, because its qdisc ingress takes the place
// of clsact.
const oddLink = "kv-odd0"

// UnguardedLink adds a link to a node that cannot be guarded at egress. The node must report the
// link and start no new pod, while its running pods still talk. After the link is removed, the
// waiting pod must start.
func UnguardedLink(ctx context.Context, s *session.Session) (err error) {
	a, b, err := s.TwoPods(ctx)
	if err != nil {
		return err
	}
	node, err := s.Client.CoreV1().Nodes().Get(ctx, b.Node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	release := node.Status.NodeInfo.KernelVersion
	if has, err := hasTCX(release); err != nil {
		return err
	} else if has {
		return session.Skip("Linux %s of %s has tcx: no qdisc takes the place of the guard",
			release, b.Node)
	}
	own, err := s.OwnNamespace(ctx)
	if err != nil {
		return err
	}

	remove := func(ctx context.Context) error {
		_, err := s.Lab.Exec(ctx, b.Node,
			fmt.Sprintf("! test -e /sys/class/net/%[1]s || ip link del %[1]s", oddLink))
		return err
	}
	defer func() { err = errors.Join(err, remove(context.WithoutCancel(ctx))) }()
	// Create the link as a pod's link, which the guard ignores, so that there is time to add the
	// qdisc.
	if _, err := s.Lab.Exec(ctx, b.Node, fmt.Sprintf("ip link add %[1]s group %[2]d type dummy && "+
		"tc qdisc add dev %[1]s ingress && ip link set %[1]s group 0 up", oddLink,
		abi.PodGroup)); err != nil {
		return err
	}
	if err := namedProblem(ctx, s, b.Node, oddLink); err != nil {
		return err
	}

	ran := make(chan error, 1)
	go func() { ran <- own.Run(ctx, &remote.Pod{Name: "waits", Node: b.Node}) }()
	err = refused(ctx, s, own.Name, "waits")
	err = errors.Join(err, session.TalkBoth(ctx, a, b), remove(ctx))
	return errors.Join(err, <-ran)
}

// hasTCX reports whether a release such as 6.1.0-44-amd64 has tcx.
func hasTCX(release string) (bool, error) {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return false, fmt.Errorf("release %q of Linux: %w", release, err)
	}
	return major > tcxSince[0] || major == tcxSince[0] && minor >= tcxSince[1], nil
}

// namedProblem waits until the status of a node reports that a link has no guard.
func namedProblem(ctx context.Context, s *session.Session, node, link string) error {
	pod, err := s.Daemon(ctx, session.VeildSet, node)
	if err != nil {
		return err
	}
	return remote.Until(ctx, "the problem with "+link, time.Minute, func(ctx context.Context) error {
		// veilctl exits with 1 if the node has a problem, so parse its output first.
		out, err := s.ExecVeilctl(ctx, pod.Name, "status")
		if named := "link " + link + " has no guard of its own"; !strings.Contains(string(out),
			named) {
			return errors.Join(err, fmt.Errorf("status does not contain %q:\n%s", named, out))
		}
		s.Note("status names the link: %s", lineWith(string(out), link))
		return nil
	})
}

// lineWith returns the first line of a text that contains word, without blanks around it, or an
// empty string.
func lineWith(text, word string) string {
	for line := range strings.Lines(text) {
		if strings.Contains(line, word) {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// refused waits until the kubelet reports that the network refused a pod, and checks that the pod
// has no address.
func refused(ctx context.Context, s *session.Session, namespace, pod string) error {
	core := s.Client.CoreV1()
	err := remote.Until(ctx, "the refusal of pod "+pod, time.Minute, func(ctx context.Context) error {
		events, err := core.Events(namespace).List(ctx,
			metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.Reason == "FailedCreatePodSandBox" || e.Reason == "NetworkNotReady" {
				s.Note("pod %s waits: %s", pod, e.Message)
				return nil
			}
		}
		return fmt.Errorf("none of its %d events is a refusal", len(events.Items))
	})
	if err != nil {
		return err
	}

	got, err := core.Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if got.Status.PodIP != "" {
		return fmt.Errorf("pod %s has %s on a node with a link without a guard", pod,
			got.Status.PodIP)
	}
	return nil
}
