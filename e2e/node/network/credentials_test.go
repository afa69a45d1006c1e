package network_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// The credentials of a node's daemon expire. Its pods still reach other pods, pods can be added and
// removed, also after a restart of the daemon, and nothing is in clear. After a request is refused,
// the node's status contains the API server's answer. Changes in this time are in force within 20 s
// after the credentials are valid again, without a restart.
func TestCredentialsExpire(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{})
	pods := nodetest.EchoPods(ctx, t, l)
	nodetest.Meet(ctx, t, pods[0], pods[1])
	n := l.Nodes()[1]
	t.Run("before the daemon is restarted", func(t *testing.T) {
		expire(ctx, t, l, pods, time.Minute, func() { restartVeild(ctx, t, n) })
	})
	t.Run("while it runs", func(t *testing.T) {
		nettest.NeedLong(t, "a client remembers for up to a minute what the file had")
		expire(ctx, t, l, pods, 2*time.Minute, func() {
			// The server does not end a running watch when its credentials expire.
			errtest.Must(t, l.Control.StopAPIServer(ctx))
			errtest.Must(t, l.Control.StartAPIServer(ctx))
		})
	})
	nodetest.NoLeaks(t, l)
}

// expire replaces the token of the second node by a token that the API server refuses. It repeats
// cut, which ends the daemon's connections, until the node's status contains the refusal.
func expire(ctx context.Context, t *testing.T, l *lab.Lab, pods []*lab.Pod, patience time.Duration,
	cut func()) {
	t.Helper()
	const limit = 20 * time.Second
	n := pods[1].Node
	held := nodetest.Hold(ctx, t, pods[0], pods[1].Addr(true))
	file := filepath.Join(n.Disk(), lab.TokenFile)
	token := filetest.Read(t, file)
	filetest.Write(t, file, append([]byte("expired-"), token...), 0o600)
	err := lab.Until(ctx, patience, func() error {
		cut()
		return lab.Until(ctx, 5*time.Second, func() error {
			problems := strings.Join(nodetest.NodeStatus(ctx, t, n).Problems, "\n")
			if !strings.Contains(problems, "Unauthorized") {
				return fmt.Errorf("problems %q, want one that says Unauthorized", problems)
			}
			return nil
		})
	})
	errtest.Must(t, err)
	fresh := nodetest.EchoPod(ctx, t, n, "fresh")
	talk(ctx, t, pods[0], fresh)
	errtest.Must(t, fresh.Del(ctx))

	// A node that joins meanwhile must become a peer after the credentials are valid again.
	joined, err := l.AddNode(ctx)
	errtest.Must(t, err)
	nodetest.WaitReady(ctx, t, joined)
	far := nodetest.EchoPod(ctx, t, joined, "echo")
	nodetest.Meet(ctx, t, pods[0], far)

	filetest.Write(t, file, token, 0o600)
	began := time.Now()
	err = lab.Until(ctx, limit, func() error {
		if nodetest.Talks(ctx, pods[1], far.Addrs) < len(far.Addrs) {
			return errors.New("the node does not know the one that joined")
		}
		return nil
	})
	if err != nil {
		t.Errorf("after the credentials are right again: %v; problems %q", err,
			nodetest.NodeStatus(ctx, t, n).Problems)
	}
	t.Logf("the node knew the one that joined %v after its credentials were right again",
		time.Since(began).Round(10*time.Millisecond))
	nodetest.WaitStatus(ctx, t, n, limit, func(s telemetry.Status) error {
		if len(s.Problems) > 0 {
			return fmt.Errorf("problems %q, want none", s.Problems)
		}
		return nil
	})

	var h traffic.Held
	if err := held.Result(ctx, &h); err != nil {
		t.Errorf("a connection did not live through it: %v", err)
	}
}
