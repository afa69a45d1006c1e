package nftables_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables"
	"github.com/kubeveil/kubeveil/pkg/policy/policytest"
)

// largeDatagram is the payload of a datagram that needs three fragments over a link of MTU 1500.
const largeDatagram = 4000

// fragmentsOf counts the fragments with the filling that an end of the lab received.
func (l *lab) fragmentsOf(end *nettest.NS, filling byte) (count int) {
	for _, f := range l.captures[end].Frames() {
		run := bytes.Repeat([]byte{filling}, 64)
		if f.Outgoing || len(f.Data) < 54 || !bytes.Contains(f.Data, run) {
			continue
		}
		const moreOrOffset = 0x3fff
		v4 := f.Data[14]>>4 == 4 && binary.BigEndian.Uint16(f.Data[20:])&moreOrOffset != 0
		v6 := f.Data[14]>>4 == 6 && f.Data[20] == 44 // the fragment header comes next
		if v4 || v6 {
			count++
		}
	}
	return count
}

// listen opens a socket for datagrams.
func listen(t *testing.T, ns *nettest.NS, at netip.AddrPort) net.PacketConn {
	t.Helper()
	var c net.PacketConn
	ns.Run(t, func() (err error) {
		c, err = net.ListenPacket("udp", at.String())
		return err
	})
	t.Cleanup(func() { c.Close() })
	return c
}

// sendDatagram sends a large datagram from an address. Each byte of its payload is filling.
func sendDatagram(t *testing.T, ns *nettest.NS, from netip.Addr, to netip.AddrPort, filling byte) {
	t.Helper()
	ns.Run(t, func() error {
		d := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
		c, err := d.DialContext(t.Context(), "udp", to.String())
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write(bytes.Repeat([]byte{filling}, largeDatagram))
		return err
	})
}

// wantDatagram reads a large datagram and checks that it is complete.
func wantDatagram(t *testing.T, c net.PacketConn, filling byte) {
	t.Helper()
	errtest.Must(t, c.SetReadDeadline(time.Now().Add(patience*10)))
	b := make([]byte, 2*largeDatagram)
	n, _, err := c.ReadFrom(b)
	if err != nil || !bytes.Equal(b[:n], bytes.Repeat([]byte{filling}, largeDatagram)) {
		t.Errorf("read %d bytes, %v, want %d of %c", n, err, largeDatagram, filling)
	}
}

// wantFragments waits until an end of the lab has received the three fragments of a datagram.
func (l *lab) wantFragments(t *testing.T, end *nettest.NS, filling byte) {
	t.Helper()
	nettest.Until(t, expectation, "three fragments", func() bool {
		return l.fragmentsOf(end, filling) == 3
	})
}

// wantDropped waits until the node has counted a drop of the reason since before.
func (l *lab) wantDropped(t *testing.T, reason string, before uint64) {
	t.Helper()
	nettest.Until(t, expectation, "a drop is counted as "+reason, func() bool {
		return l.dropped(reason) > before
	})
}

func (l *lab) dropped(reason string) (n uint64) {
	l.t.Helper()
	l.node.Run(l.t, func() error {
		drops, err := nftables.Drops()
		n = drops[reason]
		return err
	})
	return n
}

// Only the first fragment of a datagram has its port.
func TestFragmentsAreJudgedAsTheirDatagram(t *testing.T) {
	l, p := two(t)
	port := []policy.Port{{Proto: policy.UDP, First: 80, Last: 80}}
	np := serverPolicy()
	np.Rules[0][0].Ports = port
	p.PutPolicy(np)
	p.PutPolicy(policy.Policy{Name: policy.Name{Namespace: "a", Name: "sender"},
		Isolates: [2]bool{false, true},
		Subjects: policy.Selector{{Key: "app", Op: policy.DoesNotExist}},
		Rules:    [2][]policy.Rule{nil, {{Ports: port}}}})

	filling := byte('A')
	for reason, path := range map[string]struct {
		from, to *nettest.NS
		src, dst []netip.Addr
	}{
		"policy_ingress": {l.pods[2], l.pods[1], policytest.PodAddrs(2), policytest.PodAddrs(1)},
		"policy_egress":  {l.pods[3], l.rest, policytest.PodAddrs(3), policytest.Outside},
	} {
		for f, family := range []string{"IPv4", "IPv6"} {
			t.Run(fmt.Sprint(reason, " ", family), func(t *testing.T) {
				allowed := netip.AddrPortFrom(path.dst[f], 80)
				denied := netip.AddrPortFrom(path.dst[f], 81)
				open, closed := listen(t, path.to, allowed), listen(t, path.to, denied)
				send := func(to netip.AddrPort) {
					t.Helper()
					filling++
					sendDatagram(t, path.from, path.src[f], to, filling)
				}

				l.node.Run(t, nftables.Delete)
				l.table.Forget()
				send(denied) // the control
				wantDatagram(t, closed, filling)
				l.wantFragments(t, path.to, filling)

				l.apply(p.Plan())
				send(allowed)
				wantDatagram(t, open, filling)
				l.wantFragments(t, path.to, filling)

				before := l.dropped(reason)
				send(denied)
				refused := filling
				l.wantDropped(t, reason, before)
				send(allowed) // Earlier fragments have arrived by then, or never will.
				l.wantFragments(t, path.to, filling)
				if n := l.fragmentsOf(path.to, refused); n != 0 {
					t.Errorf("%d fragments of a denied datagram arrived", n)
				}
				errtest.Must(t, closed.SetReadDeadline(time.Now().Add(settle)))
				if n, _, err := closed.ReadFrom(make([]byte, 2*largeDatagram)); !errors.Is(err,
					os.ErrDeadlineExceeded) {
					t.Errorf("read %d bytes of a denied datagram, %v", n, err)
				}
			})
		}
	}
}
