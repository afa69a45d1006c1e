package keys

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/e2e/cluster/network/session"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// ClockSetBack sets a node's clock ahead by an hour, makes the node handshake with a peer, and sets
// the clock back. The peer's kernel WireGuard would now refuse the node's handshakes for an hour.
// So the node must make another key, and its pods must reach pods of other nodes.
func ClockSetBack(ctx context.Context, s *session.Session) error {
	a, b, err := s.TwoPods(ctx)
	if err != nil {
		return err
	}
	old, err := Of(ctx, s, b.Node)
	if err != nil {
		return err
	}
	peer, err := Of(ctx, s, a.Node)
	if err != nil {
		return err
	}

	// set changes the clock and removes the peer, so that the next packet begins a handshake.
	set := func(by string) error {
		_, err := s.Lab.Exec(ctx, b.Node, fmt.Sprintf("date -s '%s' && wg set veil0 peer %s remove",
			by, peer))
		return err
	}
	reaches := func(what string) error {
		return remote.Until(ctx, what, time.Minute, func(ctx context.Context) error {
			return session.Meet(ctx, b, append([]string{"--timeout=5s"},
				session.Echoes(remote.EchoPort, a.Addrs)...)...)
		})
	}
	if err := set("+1 hour"); err != nil {
		return err
	}
	if err := reaches("handshakes of a clock that is ahead"); err != nil {
		return err
	}
	key, err := Of(ctx, s, b.Node)
	if err != nil {
		return err
	}
	if key != old {
		return fmt.Errorf("%s has another key, although its clock was only set ahead", b.Node)
	}

	if err := set("-1 hour"); err != nil {
		return err
	}
	began := time.Now()
	if err := reaches("handshakes of a clock that was set back"); err != nil {
		return err
	}
	s.Note("pods of %s reached others %.0f s after its clock was set right", b.Node,
		time.Since(began).Seconds())
	out, err := s.Lab.Exec(ctx, b.Node, "wg show veil0 public-key")
	if err != nil {
		return err
	}
	if strings.TrimSpace(string(out)) == old {
		return fmt.Errorf("%s still has the former key", b.Node)
	}
	return nil
}
