package servers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/cluster/network/session"
	"github.com/kubeveil/kubeveil/internal/poll"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// How long the API server is away in the short and in the long case.
const (
	apiAwayShort = 20 * time.Second
	apiAwayLong  = 5 * time.Minute
)

// sandboxOf is a shell command that prints the sandbox of the pod with a uid, with containerd's
// client.
const sandboxOf = `ctr -n k8s.io containers list -q 'labels."io.kubernetes.pod.uid"==%s,labels."io.cri-containerd.kind"==sandbox'`

// addressesOf is a shell command that prints the addresses of all pods of a node.
const addressesOf = `for n in $(ip netns list | cut -d' ' -f1); do ip -n $n -o address show dev eth0 scope global 2>/dev/null; done | awk '{sub("/.*", "", $4); print $4}'`

// APIAway stops the API server for a short time. Meanwhile pods are killed and come back.
func APIAway(ctx context.Context, s *session.Session) error {
	return takeAway(ctx, s,
		apiAwayShort)
}

// APIAwayForLong is APIAway for five minutes.
func APIAwayForLong(ctx context.Context, s *session.Session) error {
	return takeAway(ctx, s, apiAwayLong)
}

// victim is a pod with the ids by which its node can kill it or run commands in it without the API
// server.
type victim struct {
	*remote.Pod
	uid, container string
}

// takeAway stops the API server for the time away. Meanwhile it kills a container, which must come
// back, and a pod's sandbox, which must come back with another address that pods of another node
// reach. Existing flows must survive.
func takeAway(ctx context.Context, s *session.Session, away time.Duration) error {
	a, b, err := s.TwoPods(ctx)
	if err != nil {
		return err
	}
	n, err := s.OwnNamespace(ctx)
	if err != nil {
		return err
	}

	again, anew := &victim{Pod: &remote.Pod{Name: "again", Node: b.Node}},
		&victim{Pod: &remote.Pod{Name: "anew", Node: b.Node}}
	client := &victim{Pod: a}
	if err := session.AtOnce(func() error { return n.Run(ctx, again.Pod) },
		func() error { return n.Run(ctx, anew.Pod) }); err != nil {
		return err
	}

	for _, v := range []*victim{again, anew, client} {
		got, err := s.Client.CoreV1().Pods(v.Namespace.Name).Get(ctx, v.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		v.uid = string(got.UID)
		for _, c := range got.Status.ContainerStatuses {
			v.container = strings.TrimPrefix(c.ContainerID, "containerd://")
		}
	}

	all, err := s.Load(ctx)
	if err != nil {
		return err
	}

	began := time.Now()
	if err := s.Lab.StopAPI(ctx); err != nil {
		return err
	}

	err = killAndReach(ctx, s, client, again, anew)
	// A long outage differs from a short one: leases end, watches break and retries are far apart.
	err = errors.Join(err, poll.Pause(ctx, time.Until(began.Add(away))))
	s.Note("away for %.0f s", time.Since(began).Seconds())
	if startErr := s.Lab.StartAPI(context.WithoutCancel(ctx)); startErr != nil {
		return errors.Join(err, startErr)
	}
	err = errors.Join(err, s.WaitNodesReady(ctx, session.Returning),
		s.Held(ctx, all, session.GapUndisturbed))
	if err != nil {
		return err
	}

	old := anew.Addrs
	err = remote.Until(ctx, "the new address in the pod's status", remote.PodPatience,
		func(ctx context.Context) error {
			if err := anew.WaitReady(ctx, remote.PodPatience); err != nil {
				return err
			}
			if anew.Addrs[0] == old[0] {
				return fmt.Errorf("its address is still %s", old[0])
			}
			return again.WaitReady(ctx, remote.PodPatience)
		})
	if err != nil {
		return err
	}

	return session.Talk(ctx, a, remote.EchoPort, append(again.Addrs, anew.Addrs...)...)
}

// killAndReach kills the container of one pod and the sandbox of the other, and then talks to both
// from the pod from. It uses only commands on the nodes, because the API server is away.
func killAndReach(ctx context.Context, s *session.Session, from, again, anew *victim) error {
	node := again.Node
	before, err := s.Lab.Exec(ctx, node, addressesOf)
	if err != nil {
		return err
	}

	for _, task := range []string{again.container, "$(" + fmt.Sprintf(sandboxOf, anew.uid) + ")"} {
		if _, err := s.Lab.Exec(ctx, node, "ctr -n k8s.io tasks kill -s SIGKILL "+
			task); err != nil {
			return err
		}
	}

	began := time.Now()
	targets := session.Echoes(remote.EchoPort, again.Addrs)
	err = remote.Until(ctx, "another address of the pod whose sandbox was killed",
		remote.PodPatience, func(ctx context.Context) error {
			after, err := s.Lab.Exec(ctx, node, addressesOf)
			if err != nil {
				return err
			}
			fresh := added(string(before), string(after))
			if len(fresh) < len(anew.Addrs) {
				return fmt.Errorf("%d of %d new addresses exist", len(fresh), len(anew.Addrs))
			}
			for _, addr := range fresh {
				targets = append(targets, session.Both(netip.AddrPortFrom(addr,
					remote.EchoPort).String())...)
			}
			return nil
		})
	if err != nil {
		return err
	}

	line := fmt.Sprintf("ctr -n k8s.io tasks exec --exec-id meet-$$ %s veil-tools echo-meet "+
		"--timeout %s %s",
		from.container, 2*session.Meeting, strings.Join(targets, " "))
	if _, err := s.Lab.Exec(ctx, from.Node, line); err != nil {
		return err
	}

	s.Note("without API server: %v met after %.0f s", targets, time.Since(began).Seconds())
	return nil
}

// added returns the addresses in after that are not in before.
func added(before, after string) []netip.Addr {
	old := map[string]bool{}
	for _, word := range strings.Fields(before) {
		old[word] = true
	}
	var out []netip.Addr
	for _, word := range strings.Fields(after) {
		if addr, err := netip.ParseAddr(word); err == nil && !old[word] {
			out = append(out, addr)
		}
	}
	return out
}
