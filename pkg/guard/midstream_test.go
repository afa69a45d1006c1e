package guard

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// A pod continues a connection that other programs had translated to another node's pod. Connection
// tracking has forgotten it, and no service has the address any more.
func TestForgottenConnectionsOfPodsDoNotLeave(t *testing.T) {
	n := newLeaving(t)
	onWire := n.wire(t)
	forgotten := func(e ends) *net.TCPConn {
		n.serve(t, farOf)
		c, _ := n.connect(t, n.pod, "", e.service)
		n.serve(t, nil)
		n.forget(t)
		return c
	}

	for _, e := range leavingEnds {
		t.Run(e.name, func(t *testing.T) {
			c := forgotten(e)
			secret := "secret over " + e.name
			n.counts(t, "a segment", func() { write(t, c, secret) })
			if _, err := read(c, 1); !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("the pod's connection: %v, want it reset", err)
			}
			if onWire(secret) {
				t.Error("the segment left in clear")
			}

			// Control: without the two chains the packet leaves, and the capture shows it.
			n.Run(t, func() error {
				return runNFT("flush chain inet kubeveil_guard midstream; flush chain inet " +
					"kubeveil_guard refuse_midstream")
			})
			secret = "secret over " + e.name + ", without the guard"
			write(t, forgotten(e), secret)
			nettest.Until(t, patience, "the segment is seen", func() bool { return onWire(secret) })
			n.apply(t)
		})
	}
}

// The same holds if other programs still translate the address, but now to a host outside that was
// not an end of the connection.
func TestForgottenConnectionsAreNotTranslatedToOutside(t *testing.T) {
	n := newLeaving(t)
	onWire := n.wire(t)
	for _, e := range leavingEnds {
		n.serve(t, farOf)
		c, _ := n.connect(t, n.pod, "", e.service)
		n.serve(t, outsideOf)
		n.forget(t)
		secret := "secret over " + e.name
		n.counts(t, "a segment over "+e.name, func() { write(t, c, secret) })
		if onWire(secret) {
			t.Errorf("%s: the segment left in clear", e.name)
		}
		abort(t, c)
	}
}

// The same holds for packets of other nodes' pods through this node, to a service with an endpoint
// outside.
func TestForgottenConnectionsOutOfTunnelsDoNotLeave(t *testing.T) {
	n := newLeaving(t)
	onWire := n.wire(t)
	n.serve(t, outsideOf)
	for _, e := range leavingEnds {
		c, _ := n.connect(t, n.far, e.far, e.service)
		n.forget(t)
		secret := "secret over " + e.name
		n.counts(t, "a segment over "+e.name, func() { write(t, c, secret) })
		if onWire(secret) {
			t.Errorf("%s: the segment left in clear", e.name)
		}
		abort(t, c)
	}
}

// abort closes a connection with a reset, so that the kernel forgets it and sends no further data.
func abort(t *testing.T, c *net.TCPConn) {
	t.Helper()
	errtest.Must(t, errors.Join(c.SetLinger(0), c.Close()))
}

// Connections that connection tracking saw from their beginning are not affected, nor are
// connections that stay inside.
func TestConnectionsOfPodsThatAreKnownLeave(t *testing.T) {
	n := newLeaving(t)
	for _, e := range leavingEnds {
		t.Run(e.name, func(t *testing.T) {
			c, s := n.connect(t, n.pod, "", e.outside)
			n.upgrade(t, clsact, nextVersion(t), 0)
			n.apply(t)
			say(t, c, s, "after an upgrade")
			n.Run(t, func() error { return runNFT("flush ruleset") })
			n.apply(t)
			n.Run(t, func() error { return errors.Join(admit(), runNFT(masqueradePods)) })
			say(t, c, s, "after all of nftables was flushed")
			errtest.Must(t, c.CloseWrite())
			if _, err := read(s, 1); !errors.Is(err, io.EOF) {
				t.Errorf("the far end reads %v, want the end", err)
			}
			say(t, s, c, "from a half that is open")
			s.Close()
			if _, err := read(c, 1); !errors.Is(err, io.EOF) {
				t.Errorf("the pod reads %v, want the end", err)
			}

			c, s = n.connect(t, n.pod, "", e.outside)
			abort(t, c)
			if _, err := read(s, 1); !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("the far end reads %v, want a reset", err)
			}

			c, s = n.connect(t, n.pod, "", e.far)
			n.forget(t)
			say(t, c, s, "inside a connection is taken up in its midst")
			n.wantNone(t, "what is known, and what stays inside")
		})
	}
}

// Only the first packet of a known connection passes the chains, so its other packets cost nothing.
func TestKnownConnectionsAreNotAsked(t *testing.T) {
	n := newLeaving(t)
	chains := []string{"midstream", "refuse_midstream"}
	n.Run(t, func() error {
		for _, c := range chains {
			if err := runNFT("insert rule inet kubeveil_guard " + c + " tcp dport " + leavingPort +
				" counter"); err != nil {
				return err
			}
		}
		return nil
	})

	for i, e := range leavingEnds {
		c, s := n.connect(t, n.pod, "", e.outside)
		for range 20 {
			say(t, c, s, "more")
		}
		for _, name := range chains {
			out := n.Exec(t, "nft", "list", "chain", "inet", "kubeveil_guard", name)
			if want := fmt.Sprintf("dport %s counter packets %d ", leavingPort,
				i+1); !strings.Contains(out, want) {
				t.Fatalf("%s, want it to have seen %d packets:\n%s", name, i+1, out)
			}
		}
	}
}

// A SYN that is retransmitted opens a connection, also if connection tracking has forgotten its
// entry.
func TestLostSYNsAreSentAgain(t *testing.T) {
	n := newLeaving(t)
	for _, e := range leavingEnds {
		t.Run(e.name, func(t *testing.T) {
			n.peer.Run(t, func() error {
				return runNFT("table inet lossy { chain c { type filter hook input priority 0; " +
					"tcp dport " + leavingPort + " counter drop; }; }")
			})
			syns := nettest.NewCapture(t, n.peer, nettest.SnifferOptions{Link: "u0", Ring: 1 << 22})
			dialled := make(chan error, 1)
			go func() {
				dialled <- n.pod.Do(func() error {
					c, err := net.DialTimeout("tcp", net.JoinHostPort(e.outside, leavingPort),
						patience)
					if err == nil {
						c.Close()
					}
					return err
				})
			}()

			port := binary.BigEndian.AppendUint16(nil, 7780)
			nettest.Until(t, patience, "the first SYN arrives", func() bool {
				return slices.ContainsFunc(syns.Frames(),
					func(f nettest.Frame) bool { return bytes.Contains(f.Data, port) })
			})
			n.forget(t)
			n.peer.Run(t, func() error { return runNFT("delete table inet lossy") })
			if err := <-dialled; err != nil {
				t.Errorf("the pod connects: %v; dropped %v", err, n.counters(t))
			} else {
				(<-n.accepted).Close()
			}

			n.wantNone(t, "a SYN that is sent again")
		})
	}
}

// Connection tracking does not take up a connection at its last segments. Such segments of a
// forgotten connection are dropped, with the chains and without them, and cause no further reset.
func TestEndsOfForgottenConnectionsAreAsBefore(t *testing.T) {
	n := newLeaving(t)
	for _, e := range leavingEnds {
		for what, end := range map[string]func(*testing.T, *net.TCPConn){
			"FIN": func(_ *testing.T, c *net.TCPConn) { c.Close() },
			"RST": abort,
		} {
			c, _ := n.connect(t, n.pod, "", e.outside)
			n.forget(t)
			before := n.counters(t)["src_in_range"]
			end(t, c)
			nettest.Until(t, patience, what+" is dropped", func() bool {
				return n.counters(t)["src_in_range"] > before
			})
			n.wantNone(t, what)
		}
	}
}

// The programs at links track their flows from the beginning.
func TestFlowsOfServicesGoOn(t *testing.T) {
	n := newLeaving(t)
	n.Run(t, func() error {
		return runNFT(fmt.Sprintf("table inet served { chain c { type filter hook prerouting "+
			"priority -200; iifname p0 meta mark set meta mark | %#x; }; }", abi.ServiceMark))
	})
	for _, e := range leavingEnds {
		c, s := n.connect(t, n.pod, "", e.outside)
		n.forget(t)
		say(t, c, s, "of a flow over "+e.name)
		n.wantNone(t, e.name)
	}
}
