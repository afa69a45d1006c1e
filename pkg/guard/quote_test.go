package guard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/guard/chains"
)

// icmpMessage returns an ICMP message of a type that carries a UDP packet. The kernel computes its
// checksum for IPv6 and does not check it for IPv4.
func icmpMessage(typ byte, src, dst string, port uint16) []byte {
	inner := ipPacket(src, dst, 0)
	binary.BigEndian.PutUint16(inner[len(inner)-7:], port)
	return append([]byte{typ, 0, 0, 0, 0, 0, 0, 0}, inner...)
}

// sendICMP sends a message from the host by a raw socket.
func sendICMP(to string, message []byte) error {
	addr := netip.MustParseAddr(to)
	if addr.Is4() {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, message, 0, &unix.SockaddrInet4{Addr: addr.As4()})
	}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Sendto(fd, message, 0, &unix.SockaddrInet6{Addr: addr.As16()})
}

// Only the table acts, on a link without programs so far.
func TestTableDropsErrorsThatQuoteThePacketsOfTunnels(t *testing.T) {
	needTCX(t)
	n := newNode(t, tcx)
	n.cable(t, "u1", "198.19.1.1/24", "198.19.1.2/24", "fd42:a::1/64", "fd42:a::2/64")

	for _, f := range []struct {
		name, to, pod, host, other string
		unreachable, echo          byte
	}{
		{"IPv4", "198.19.1.2", "198.18.5.5", "203.0.113.1", "203.0.113.2", 3, 8},
		{"IPv6", "fd42:a::2", "fd42:1::5", "2001:db8::1", "2001:db8::2", 1, 128},
	} {
		for _, c := range []struct {
			situation string
			message   []byte
			dropped   bool
		}{
			{"about a packet to a pod", icmpMessage(f.unreachable, f.host, f.pod, 53), true},
			{"about a packet of a pod", icmpMessage(f.unreachable, f.pod, f.host, 53), true},
			{"about a probe", icmpMessage(f.unreachable, f.host, f.other, abi.ProbePort), true},
			{"about another packet", icmpMessage(f.unreachable, f.host, f.other, 53), false},
			{"that is an echo of the same bytes", icmpMessage(f.echo, f.host, f.pod, 53), false},
		} {
			before := n.counters(t)[chains.QuotedInError]
			err := n.Do(func() error { return sendICMP(f.to, c.message) })
			if err != nil && !errors.Is(err, unix.EPERM) {
				t.Fatal(err)
			}
			what := fmt.Sprintf("%s error %s", f.name, c.situation)
			if c.dropped {
				nettest.Until(t, patience, what+" is counted", func() bool {
					return n.counters(t)[chains.QuotedInError] > before
				})
			} else if err != nil || n.counters(t)[chains.QuotedInError] != before {
				t.Errorf("%s was dropped: %v", what, err)
			}
		}
	}
}
