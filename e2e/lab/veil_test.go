package lab_test

import (
	"context"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
)

// The main job: pods on two nodes talk over both protocols, and nothing of it is on the wire.
func TestPodsTalkEncrypted(t *testing.T) {
	t.Parallel()
	for _, family := range []lab.Family{lab.Dual, lab.IPv4, lab.IPv6} {
		t.Run(string(family), func(t *testing.T) {
			ctx, l := newLab(t, lab.Options{Family: family})
			began := time.Now()
			for _, n := range l.Nodes() {
				if err := n.WaitReady(ctx); err != nil {
					t.Fatal(err)
				}
			}
			t.Logf("nodes ready %v after the lab", time.Since(began).Round(time.Millisecond))
			pods := echoPods(ctx, t, l)
			meet(ctx, t, pods[0], pods[1])
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
		})
	}
}

// meet waits until the nodes of two pods know each other's keys; before that the
// pods' packets are refused.
func meet(ctx context.Context, t *testing.T, a, b *lab.Pod) {
	t.Helper()
	for _, pair := range [][2]*lab.Pod{{a, b}, {b, a}} {
		err := lab.Until(ctx, 20*time.Second, func() error {
			_, err := lab.Send(ctx, pair[0], lab.Exchange{Proto: "tcp", To: pair[1].Addrs[0], Count: 1, Size: 100, Timeout: time.Second})
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
