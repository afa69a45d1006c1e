package pod

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/pod/podtest"
)

type leftover struct {
	links    map[string]bool
	records  []Record
	elements []element
}

func (l *leftover) Error() string {
	return fmt.Sprintf("left over: links %v, records %v, elements %v", l.links, l.records,
		l.elements)
}

func TestAttachCarriesPackets(t *testing.T) {
	for _, tt := range []struct {
		name  string
		addrs []netip.Addr
	}{
		{"IPv4 only", []netip.Addr{pod4}},
		{"IPv6 only", []netip.Addr{pod6}},
		{"dual stack", []netip.Addr{pod4, pod6}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			nettest.AddAddr(t, n.NS, "lo", netip.MustParsePrefix("198.18.0.1/32"),
				netip.MustParsePrefix("fd42::1/128"))
			r, ns := newRecord(t, "c1", tt.addrs...)
			n.attach(r, ns)

			for _, a := range tt.addrs {
				to := "198.18.0.1"
				if a.Is6() {
					to = "fd42::1"
				}
				echo(t, n, ns, to, a)
			}

			n.must(func() error { return n.Detach(r.HostLink) })
			errtest.Check(t, n.bare())
		})
	}
}

// echo sends a datagram from the pod to the node and one back, at once: neither needs to resolve a
// neighbour, and no address is tentative.
func echo(t *testing.T, n *node, ns *nettest.NS, nodeAddr string, podAddr netip.Addr) {
	t.Helper()
	var server net.PacketConn
	n.must(func() (err error) {
		server, err = net.ListenPacket("udp", net.JoinHostPort(nodeAddr, "0"))
		return err
	})
	defer server.Close()
	ns.Run(t, func() error {
		c, err := net.Dial("udp", server.LocalAddr().String())
		if err != nil {
			return err
		}
		defer c.Close()
		deadline := time.Now().Add(5 * time.Second)
		_ = c.SetDeadline(deadline)
		_ = server.SetDeadline(deadline)
		if _, err := c.Write([]byte("ping")); err != nil {
			return err
		}

		buf := make([]byte, 16)
		_, from, err := server.ReadFrom(buf)
		if err != nil {
			return fmt.Errorf("node read: %w", err)
		}
		if got := netip.MustParseAddrPort(from.String()).Addr().Unmap(); got != podAddr {
			return fmt.Errorf("source of the pod is %s, want %s", got, podAddr)
		}
		if _, err := server.WriteTo([]byte("pong"), from); err != nil {
			return err
		}
		if _, err := c.Read(buf); err != nil {
			return fmt.Errorf("pod read: %w", err)
		}

		return nil
	})
}

func TestAttachFailedAtEachStepLeavesNothing(t *testing.T) {
	boom := errors.New("boom")
	for _, s := range (&attachment{}).steps() {
		t.Run(s.name, func(t *testing.T) {
			n := newNode(t)
			r, ns := newRecord(t, "c1", pod4, pod6)
			n.must(func() error {
				afterStep = func(name string) error {
					if name == s.name {
						return boom
					}
					return nil
				}
				defer func() { afterStep = nil }()
				var undo Undo

				// In the place of the caller's release of addresses.
				undo.Add(func() error {
					if _, err := podtest.LinkIndex(r.HostLink); !errors.Is(err, ErrNotFound) {
						t.Errorf("released while the link is there: %v", err)
					}
					return nil
				})
				if err := n.Attach(r, ns.Fd(), &undo); !errors.Is(err, boom) {
					return fmt.Errorf("Attach = %w, want %w", err, boom)
				}

				return undo.Run()
			})

			errtest.Check(t, n.bare())

			n.attach(r, ns) // and nothing is in the way of the next
		})
	}
}

func TestAttachRefusesAddresses(t *testing.T) {
	for _, tt := range []struct {
		name  string
		addrs []netip.Addr
		want  string
	}{
		{"none", nil, "no address"},
		{"two of a family", []netip.Addr{pod4, pod4.Next()}, "at most one"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			r, ns := newRecord(t, "c1", tt.addrs...)
			n.must(func() error {
				var undo Undo
				if err := n.Attach(r, ns.Fd(), &undo); err == nil ||
					!strings.Contains(err.Error(), tt.want) {
					t.Errorf("Attach = %v, want something with %q", err, tt.want)
				}
				return undo.Run()
			})
			errtest.Check(t, n.bare())
		})
	}
}

func TestAttachTwiceIsRefused(t *testing.T) {
	n := newNode(t)
	r, ns := newRecord(t, "c1", pod4)
	n.attach(r, ns)
	err := n.Do(func() error {
		var undo Undo
		return n.Attach(r, ns.Fd(), &undo)
	})
	if !errors.Is(err, ErrAttached) || !strings.Contains(err.Error(), r.HostLink) {
		t.Errorf("Attach = %v, want %v that names %s", err, ErrAttached, r.HostLink)
	}
}

func TestDetachIsIdempotent(t *testing.T) {
	n := newNode(t)
	r, ns := newRecord(t, "c1", pod4, pod6)
	never, _ := newRecord(t, "never", pod4)
	n.attach(r, ns)
	for i, link := range []string{r.HostLink, r.HostLink, never.HostLink} {
		if err := n.Do(func() error { return n.Detach(link) }); err != nil {
			t.Errorf("Detach %d: %v", i, err)
		}
	}
	errtest.Check(t, n.bare())
}

// The marker disappears between Gate and Attach: no daemon would find the pod.
func TestAttachRefusesWhenTheMarkerIsGone(t *testing.T) {
	n := newNode(t)
	r, ns := newRecord(t, "c1", pod4, pod6)
	n.must(func() error {
		if err := os.Remove(n.ReadyFile); err != nil {
			return err
		}
		var undo Undo
		if err := n.Attach(r, ns.Fd(), &undo); !errors.Is(err, ErrClosed) {
			return fmt.Errorf("Attach = %w, want %w", err, ErrClosed)
		}
		return undo.Run()
	})
	errtest.Check(t, n.bare())
}
