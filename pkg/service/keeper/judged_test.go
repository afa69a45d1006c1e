package keeper

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/nettest"
)

// The fast path ends when a chain judges packets, once the first attempt that succeeds has taken it
// from pods. It stays off when the chain is gone, and for a process that begins later.
func TestChainOfAnotherProgramEndsTheFastPath(t *testing.T) {
	nft := nettest.NeedProgram(t, "nft")
	file := filepath.Join(t.TempDir(), fastPathOffFile)
	nettest.NewNS(t).Run(t, func() error {
		j := newJudged(file, slog.New(slog.DiscardHandler))
		if why := j.reason(); why != "" {
			t.Fatalf("off without a chain: %s", why)
		}
		if err := nettest.Command(nft, "add table inet agent; add chain inet agent f "+
			"{ type filter hook forward priority 0; policy drop; }"); err != nil {
			return err
		}
		j.rest, j.every = 0, time.Millisecond // without a notification, as with iptables-legacy
		tries := 0
		j.follow(t.Context(), func() error {
			if tries++; tries == 1 {
				return errors.New("busy")
			}
			return nil
		})
		if why := j.reason(); tries != 2 || !strings.Contains(why, "table inet agent") {
			t.Errorf("%d attempts, reason %q", tries, why)
		}

		if err := nettest.Command(nft, "delete table inet agent"); err != nil {
			return err
		}
		again := newJudged(file, slog.New(slog.DiscardHandler))
		if again.reason() != j.reason() {
			t.Errorf("a later process has the reason %q, want %q", again.reason(), j.reason())
		}
		again.follow(t.Context(), func() error { return errors.New("called") })
		return nil
	})
}

func TestFastPathStaysWithoutAChain(t *testing.T) {
	nettest.NewNS(t).Run(t, func() error {
		j := newJudged(filepath.Join(t.TempDir(), fastPathOffFile), slog.New(slog.DiscardHandler))
		j.changed()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		j.follow(ctx, func() error { t.Error("the fast path ended"); return nil })
		if why := j.reason(); why != "" {
			t.Error(why)
		}
		return nil
	})
	var off *judged
	off.changed()
	if off.follow(t.Context(), nil); off.reason() != "" {
		t.Error("a node without hostRouting auto has a reason")
	}
}
