package nodes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubeveil/kubeveil/e2e/cluster/network/keys"
	"github.com/kubeveil/kubeveil/e2e/cluster/network/session"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// Reboot cuts the power of a node while its pods talk. The pods must come back by themselves and
// talk again. No traffic may be in clear while the node boots, although its disk still has the CNI
// configuration.
func Reboot(ctx context.Context, s *session.Session) error {
	_, b, err := s.TwoPods(ctx)
	if err != nil {
		return err
	}
	old, err := keys.Of(ctx, s, b.Node)
	if err != nil {
		return err
	}

	// Packets to the node while it is away or boots must not be in clear either.
	if _, err := s.Load(ctx); err != nil {
		return err
	}

	began := time.Now()
	if err := s.Lab.Reboot(ctx, b.Node); err != nil {
		return err
	}

	s.Note("%s answers after %.0f s", b.Node, time.Since(began).Seconds())
	// The API server still shows the node as Ready, so wait for the key that the new boot
	// publishes.
	if _, err := keys.Another(ctx, s, b.Node, old, session.Returning); err != nil {
		return err
	}

	if err := s.WaitNodesReady(ctx, session.Returning, b.Node); err != nil {
		return err
	}

	// The API server shows old states of pods until the kubelet has reported new ones.
	err = remote.Until(ctx, "pods talk again", session.Returning, func(ctx context.Context) error {
		a, b, err := s.TwoPods(ctx)
		if err != nil {
			return err
		}
		return session.TalkBoth(ctx, a, b, "--timeout=10s")
	})
	if err != nil {
		return err
	}

	s.Note("its pods talk after %.0f s", time.Since(began).Seconds())
	return nil
}

// JoinAndLeave adds a node, checks that its pods talk with others, and removes the node. Nothing of
// it may be left on other nodes.
func JoinAndLeave(ctx context.Context, s *session.Session) error {
	a, _, err := s.TwoPods(ctx)
	if err != nil {
		return err
	}

	began := time.Now()
	name, err := s.Lab.Join(ctx)
	if err != nil {
		return err
	}
	if err := s.WaitNodesReady(ctx, session.Returning, name); err != nil {
		return err
	}

	s.Note("%s is Ready after %.0f s", name, time.Since(began).Seconds())
	n, err := s.OwnNamespace(ctx)
	if err != nil {
		return err
	}
	c := &remote.Pod{Name: "c", Node: name}
	if err := n.Run(ctx, c); err != nil {
		return err
	}
	if err := session.TalkBoth(ctx, a, c); err != nil {
		return err
	}

	if s.Lab != nil {
		// The lab's third machine has no module wireguard.
		if err := tunnelOf(ctx, s, name, false); err != nil {
			return err
		}
		s.Note("its tunnel is in userspace")
		if err := keys.WorkerRolled(ctx, s, a, c); err != nil {
			return err
		}
	}

	key, err := keys.Of(ctx, s, name)
	if err != nil {
		return err
	}
	if err := s.Lab.Leave(ctx, name); err != nil {
		return err
	}

	return remote.Until(ctx, name+" is forgotten", session.Meeting,
		func(ctx context.Context) error {
			return forgotten(ctx, s, a.Node, name, key, c)
		})
}

// forgotten returns an error if a node that left still has a VeilNode, or if the node at still has
// it as a peer or has a route to its pod.
func forgotten(ctx context.Context, s *session.Session, at, name, key string,
	pod *remote.Pod) error {
	if _, err := keys.Of(ctx, s, name); !apierrors.IsNotFound(err) {
		return errors.Join(fmt.Errorf("VeilNode %s is still there", name), err)
	}
	out, err := s.Lab.Exec(ctx, at, "wg show veil0 peers")
	if err != nil {
		return err
	}
	if slices.Contains(strings.Fields(string(out)), key) {
		return fmt.Errorf("%s still has it as a peer", at)
	}
	// Prefixes of the cluster without a node are unreachable, so ip route get must fail.
	if out, err := s.Lab.Exec(ctx, at, "ip route get "+pod.Addrs[0].String()); err == nil {
		return fmt.Errorf("%s routes its pod: %s", at, out)
	}
	return nil
}
