package engine_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/engine/enginetest"
)

// changed returns the revision of a device, and what it reports as changed since another.
func changed(t *testing.T, n *enginetest.TunDevice, since string) (revision, peers string) {
	t.Helper()
	var b strings.Builder
	errtest.Must(t, n.Engine.Changed(since, &b))
	first, peers, _ := strings.Cut(b.String(), "\n")
	revision, ok := strings.CutPrefix(first, "revision=")
	if !ok {
		t.Fatalf("answer %q", b.String())
	}
	return revision, peers
}

// A device reports the peers that changed after a revision, as a whole reading has them. After a
// change of the configuration, or to a client of another process, it refuses.
func TestOnlyChangedPeersAreReported(t *testing.T) {
	a, b := newEngine(t), newEngine(t)
	enginetest.Pair(t, a, b, false, "")
	a.Set(t, "public_key=%064x\nallowed_ip=10.9.0.0/24\n", 1000)
	first, peers := changed(t, a, "")
	if peers != "" {
		t.Errorf("without a revision: %s", peers)
	}

	p := datagram(false, true, []byte("hello"))
	a.Send(t, p)
	if got := b.Receive(10 * time.Second); got == nil {
		t.Fatal("no packet arrived")
	}
	nettest.Until(t, 10*time.Second, "one changed peer, as a whole reading has it", func() bool {
		var whole strings.Builder
		errtest.Must(t, a.Engine.IpcGetOperation(&whole))
		_, peers = changed(t, a, first)
		return strings.Contains(whole.String(), peers)
	})
	if keys := strings.Count(peers, "public_key="); keys != 1 ||
		!strings.HasPrefix(peers, fmt.Sprintf("public_key=%x\n", b.Public[:])) {
		t.Errorf("changed: %s", peers)
	}

	since := first
	nettest.Until(t, 10*time.Second, "nothing more that changes", func() bool {
		since, peers = changed(t, a, since)
		return peers == ""
	})

	other, _ := changed(t, b, "")
	a.Set(t, "public_key=%064x\npersistent_keepalive_interval=30\n", 1000)
	for _, since := range []string{since, other, "x"} {
		if err := a.Engine.Changed(since, &strings.Builder{}); !errors.Is(err, unix.ESTALE) {
			t.Errorf("since %s: %v, want ESTALE", since, err)
		}
	}
}
