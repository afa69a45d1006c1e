package node_test

import (
	"context"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
)

// The main job: pods on two nodes talk over both protocols, and nothing of it is on the wire.
func TestPodsTalkEncrypted(t *testing.T) {
	encrypted(t, lab.Dual, func(ctx context.Context, t *testing.T, l *lab.Lab, pods []*lab.Pod) {
		t.Run("veilctl", func(t *testing.T) { veilctlOnANode(ctx, t, l, pods) })
		t.Run("new pods", func(t *testing.T) { newPodsTalkAtOnce(ctx, t, l.Nodes()[0], pods[1]) })
	})
}

// The same over one family each.
func TestPodsTalkEncryptedIPv4(t *testing.T) { encrypted(t, lab.IPv4, nil) }
func TestPodsTalkEncryptedIPv6(t *testing.T) { encrypted(t, lab.IPv6, nil) }

// encrypted lets pods talk, with the API server killed in between, and does more while they are
// there.
func encrypted(t *testing.T, family lab.Family,
	more func(ctx context.Context, t *testing.T, l *lab.Lab, pods []*lab.Pod)) {
	ctx, l := newLab(t, lab.Options{Family: family})
	pods := echoPods(ctx, t, l)
	meet(ctx, t, pods[0], pods[1])
	talk(ctx, t, pods[0], pods[1])
	if more != nil {
		more(ctx, t, l, pods)
	}
	t.Run("API server killed", func(t *testing.T) { controlPlane(ctx, t, l) })
	talk(ctx, t, pods[0], pods[1])
	for _, p := range pods {
		if err := p.Check(ctx); err != nil {
			t.Errorf("CHECK %s: %v", p.ID, err)
		}
		if err := p.Del(ctx); err != nil {
			t.Errorf("DEL %s: %v", p.ID, err)
		}
	}
	noLeaks(t, l)
}

// meet waits until the nodes of two pods know each other's keys; before that the
// pods' packets are refused.
func meet(ctx context.Context, t *testing.T, a, b *lab.Pod) {
	t.Helper()
	for _, pair := range [][2]*lab.Pod{{a, b}, {b, a}} {
		err := lab.Until(ctx, 20*time.Second, func() error {
			_, err := lab.Send(ctx, pair[0], lab.Exchange{Proto: "tcp", To: pair[1].Addrs[0],
				Count: 1, Size: 100, Timeout: time.Second})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// noLeaks ends the lab and fails when the oracle has anything to say.
func noLeaks(t *testing.T, l *lab.Lab) {
	t.Helper()
	result, err := l.Finish()
	if err != nil {
		t.Error(err)
	}
	t.Logf("%d frames, %d plaintext: %v", result.Frames, result.Plaintext, result.Kinds)
	if err := result.Err(); err != nil {
		t.Error(err)
	}
	if result.Frames == 0 {
		t.Error("the oracle saw no frame at all")
	}
}
