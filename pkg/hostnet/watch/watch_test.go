package watch

import (
	"context"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

func TestLossIsToldAtOnceAndThenSeldom(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	g := gatherer{changes: make(chan message), lossy: time.Hour}
	out := make(chan Change)
	go g.run(ctx, out)
	g.changes <- message{lost: true}
	if c := <-out; !c.AllPods || !c.Routing || !c.Underlay || !c.Guard || !c.PodLinks {
		t.Errorf("after a loss %+v, want all", c)
	}
	g.changes <- message{lost: true}
	g.changes <- message{Change: Change{Guard: true}}
	if c := <-out; c.AllPods || !c.Guard {
		t.Errorf("after a second loss %+v, want what was told and not all", c)
	}
}

func TestHeldLossIsToldLater(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	g := gatherer{changes: make(chan message), lossy: 20 * time.Millisecond}
	out := make(chan Change)
	go g.run(ctx, out)
	g.changes <- message{lost: true}
	<-out
	g.changes <- message{lost: true}
	if c := <-out; !c.AllPods {
		t.Errorf("the second loss is told as %+v, want all", c)
	}
}

func FuzzChange(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{28, 0, 0, 0, unix.RTM_NEWROUTE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 32, 0, 0, 0,
		abi.RouteProtoPod, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{255, 255, 255, 255, 24, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add(append([]byte{40, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		abi.NFTNatTable+"\x00           "...))
	f.Fuzz(func(t *testing.T, b []byte) {
		seen := tracker{links: map[int]linkSeen{}, addrs: map[addrSeen]uint32{}}
		seen.change(b)
		changeOfNFT(b)
	})
}
