package link

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
	"github.com/kubeveil/kubeveil/pkg/service/servicetest"
)

// The flow tables of TestIdleConnectionsOutliveFloods have floodTable entries together. A flood has
// flood packets, each of a different flow.
const floodTable, flood = 4096, 40_000

// TestIdleConnectionsOutliveFloods checks that a flood of SYNs or datagrams, many more than the
// flow tables have entries, does not evict an established connection from outside. Both of its ends
// can still send.
func TestIdleConnectionsOutliveFloods(t *testing.T) {
	for name, protocols := range map[string][]byte{
		"SYNs":      {unix.IPPROTO_TCP},
		"datagrams": {unix.IPPROTO_UDP},
		"both":      {unix.IPPROTO_TCP, unix.IPPROTO_UDP},
	} {
		t.Run(name, func(t *testing.T) {
			nettest.NeedBPF(t)
			r := newUnattached(t)
			c := r.config()
			c.Memory = memoryOf(floodTable)
			r.openWith(t, c, true)
			t.Cleanup(func() { r.Table.Close() })
			r.setSelf(t)
			r.linked.attach(t)
			r.put(t, otherAt...)

			idle := r.dialOutside(t)
			errtest.Must(t, errtest.Of(servicetest.Converse(idle)))
			for _, protocol := range protocols {
				r.flood(t, protocol)
				r.expectFull(t, protocol)
			}
			if _, err := servicetest.Converse(idle); err != nil {
				t.Errorf("the idle connection was lost: %v", err)
			}
			if _, err := servicetest.Converse(r.dialOutside(t)); err != nil {
				t.Errorf("a new connection fails: %v", err)
			}
		})
	}
}

// dialOutside connects the client outside to the service.
func (r *routed) dialOutside(t *testing.T) net.Conn {
	t.Helper()
	var c net.Conn
	r.client.Run(t, func() (err error) {
		c, err = net.DialTimeout("tcp", net.JoinHostPort(outsideAt[0], "80"), servicetest.Patience)
		return err
	})
	t.Cleanup(func() { c.Close() })
	return c
}

// flood sends first packets from a hundred addresses without a host, each from another port.
func (r *routed) flood(t *testing.T, protocol byte) {
	t.Helper()
	r.client.Run(t, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		dst := netip.MustParseAddr(outsideAt[0]).As4()
		for i := range flood {
			src := [4]byte{198, 19, 0, byte(100 + i%100)}
			p := firstPacket(protocol, src, dst, uint16(20000+i/100))
			if err := unix.Sendto(fd, p, 0, &unix.SockaddrInet4{Addr: dst}); err != nil {
				return err
			}
		}
		return nil
	})
}

// firstPacket returns a SYN to port 80, which the backend answers, or a datagram to port 53.
func firstPacket(protocol byte, src, dst [4]byte, port uint16) []byte {
	l4, dport := make([]byte, 8), uint16(53) // without a checksum
	if protocol == unix.IPPROTO_TCP {
		const dataOffset, syn = 5 << 4, 2
		l4, dport = make([]byte, 20), 80
		l4[12], l4[13] = dataOffset, syn
	} else {
		binary.BigEndian.PutUint16(l4[4:], uint16(len(l4)))
	}
	binary.BigEndian.PutUint16(l4, port)
	binary.BigEndian.PutUint16(l4[2:], dport)
	if protocol == unix.IPPROTO_TCP {
		binary.BigEndian.PutUint16(l4[16:], tcpChecksum(src, dst, l4))
	}

	h := make([]byte, 20, 40) // the kernel writes the checksum of a raw packet
	h[0], h[8], h[9] = 4<<4|5, 64, protocol
	binary.BigEndian.PutUint16(h[2:], uint16(20+len(l4)))
	copy(h[12:], src[:])
	copy(h[16:], dst[:])
	return append(h, l4...)
}

// tcpChecksum returns the checksum of a segment (RFC 9293 section 3.1) of an even length.
func tcpChecksum(src, dst [4]byte, segment []byte) uint16 {
	sum := unix.IPPROTO_TCP + uint32(len(segment))
	for _, part := range [][]byte{src[:], dst[:], segment} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum>>16 > 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// expectFull waits until the flood filled the table of its flows.
func (r *routed) expectFull(t *testing.T, protocol byte) {
	t.Helper()
	table := bpfmaps.MapUDP
	if protocol == unix.IPPROTO_TCP {
		table = bpfmaps.MapOpening
	}
	nettest.Until(t, servicetest.Patience, table+" is full", func() bool {
		entries := uint32(0)
		r.eachFlow(t, func(name string, _ flowKey, _ flowEntry) {
			if name == table {
				entries++
			}
		})
		return entries > r.Map(table).MaxEntries()*3/4
	})
}
