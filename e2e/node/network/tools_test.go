package network_test

import (
	"os"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/leak"
)

func TestMain(m *testing.M) { os.Exit(nodetest.Main(m)) }

// The lab's own instruments measure correctly, over the network that needs no daemon.
func TestInstruments(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{Network: lab.Clear, Family: lab.Dual})
	pods := nodetest.EchoPods(ctx, t, l)
	n1, n2 := l.Nodes()[0], l.Nodes()[1]
	a, b := pods[0], pods[1]

	t.Run("hold, source and sink agree", func(t *testing.T) {
		held := nodetest.Hold(ctx, t, a, b.Addr(true))
		sink := nodetest.Sink(ctx, t, b)
		source := nodetest.Source(ctx, t, a, b.Addr(false), time.Millisecond)
		errtest.Must(t, sink.WaitLine(ctx, "received 101", 10*time.Second))
		var sent struct{ Sent uint64 }
		errtest.Must(t, source.Result(ctx, &sent))
		var drained traffic.Drained
		errtest.Must(t, sink.Result(ctx, &drained))
		if drained.Missing != 0 || drained.Received < 101 || drained.Received > sent.Sent {
			t.Errorf("sent %d, got %+v", sent.Sent, drained)
		}
		var h traffic.Held
		if err := held.Result(ctx, &h); err != nil || h.Records == 0 {
			t.Errorf("held %+v: %v", h, err)
		}
	})

	t.Run("a narrow path loses what is too long", func(t *testing.T) {
		errtest.Must(t, l.SetPathMTU(ctx, n2, 1400))
		x := traffic.Exchange{Proto: "udp", To: b.Addr(false), Count: 1, Size: 1420,
			Timeout: time.Second}
		if _, err := traffic.Send(ctx, a, x); err == nil {
			t.Error("1420 bytes came through a path of 1400")
		}
		x.Size, x.Timeout = 1300, 5*time.Second
		if _, err := traffic.Send(ctx, a, x); err != nil {
			t.Error(err)
		}
		errtest.Must(t, l.SetPathMTU(ctx, n2, 1500))
	})

	t.Run("a broken connection is seen", func(t *testing.T) {
		held := nodetest.Hold(ctx, t, a, b.Addr(false))
		crash(t, n2)
		errtest.Must(t, n2.Boot(ctx, true))
		again := nodetest.EchoPod(ctx, t, n2, "echo")
		if _, err := traffic.Send(ctx, a, traffic.Exchange{To: again.Addr(false)}); err != nil {
			t.Error(err)
		}
		// The new pod has the old one's address and nothing of its connection.
		if err := held.Wait(ctx); err == nil {
			t.Error("a connection outlived the other end's reboot")
		}
	})

	t.Run("another link, a cap and a cable", func(t *testing.T) {
		if _, err := n1.AddLink(ctx, "eth1"); err != nil {
			t.Error(err)
		}
		errtest.Check(t, l.Cap(ctx, "10mbit"))
		errtest.Check(t, l.Cap(ctx, ""))
		errtest.Check(t, n1.Unplug(ctx, true))
		x := traffic.Exchange{Proto: "udp", To: n2.Addrs[0], Count: 1,
			Timeout: 300 * time.Millisecond}
		if _, err := traffic.Send(ctx, n1, x); err == nil {
			t.Error("a message came through an unplugged cable")
		}
		errtest.Check(t, n1.Unplug(ctx, false))
	})
	result, err := l.Finish()
	errtest.Must(t, err)
	if result.Dropped != 0 || result.Kinds[leak.LeakCanary] == 0 {
		t.Errorf("oracle: %+v", result.Kinds)
	}
}
