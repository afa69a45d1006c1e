package tunlink

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/tun"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// A datagram over IPv6 whose sum is 0 gets the checksum 0xffff, alone and as one of several that
// the kernel delivered at once. A datagram without a checksum stays without.
func TestChecksumOfZero(t *testing.T) {
	ns := nettest.NewNS(t)
	nettest.NeedTUN(t)
	from, to := netip.MustParseAddrPort("[fd00:6b76::1]:4001"),
		netip.MustParseAddrPort("[fd00:6b76::2]:4002")
	zero := make([]byte, 100)
	copy(zero, "the sum of this and its headers is 0xffff, whose complement is 0")
	ends := from.Addr().As16()
	other := to.Addr().As16()
	words := []byte{0, unix.IPPROTO_UDP, 0, 0, 0, 0, 0, 0, 0, 0}
	binary.BigEndian.PutUint16(words[2:], udpHeader+uint16(len(zero))) // of the pseudo-header
	binary.BigEndian.PutUint16(words[4:], from.Port())
	binary.BigEndian.PutUint16(words[6:], to.Port())
	binary.BigEndian.PutUint16(words[8:], udpHeader+uint16(len(zero)))
	sum := onesSum(ends[:], onesSum(other[:], onesSum(words, onesSum(zero, 0))))
	binary.BigEndian.PutUint16(zero[len(zero)-2:], ^uint16(sum))
	plain := slices.Clone(zero)
	plain[0]++

	var dev tun.Device
	ns.Run(t, func() (err error) {
		dev, err = Open("veil0", 1440)
		return err
	})
	defer dev.Close()
	nettest.AddAddr(t, ns, "veil0", netip.PrefixFrom(from.Addr(), 64))
	var c *net.UDPConn
	ns.Run(t, func() (err error) {
		c, err = net.DialUDP("udp6", net.UDPAddrFromAddrPort(from), net.UDPAddrFromAddrPort(to))
		return err
	})
	defer c.Close()

	for _, tc := range []struct {
		name    string
		option  int // of UDP, set while it is sent
		value   int
		payload []byte
		want    []uint16 // 1 stands for any but 0 and 0xffff
	}{
		{"another", 0, 0, plain, []uint16{1}},
		{"zero", 0, 0, zero, []uint16{0xffff}},
		{"segments", unix.UDP_SEGMENT, len(zero), slices.Concat(plain, zero, plain),
			[]uint16{1, 0xffff, 1}},
		{"none", udpNoCheck6TX, 1, plain, []uint16{0}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.option != 0 {
				setOption(t, c, tc.option, tc.value)
				defer setOption(t, c, tc.option, 0)
			}
			errtest.Must(t, errtest.Of(c.Write(tc.payload)))
			for i, got := range readChecksums(t, dev, len(tc.want)) {
				if want := tc.want[i]; got != want && (want != 1 || got == 0 || got == 0xffff) {
					t.Errorf("checksum %d is %#04x, want %#04x", i, got, want)
				}
			}
		})
	}
}

// udpNoCheck6TX is UDP_NO_CHECK6_TX (include/uapi/linux/udp.h): datagrams without a checksum.
const udpNoCheck6TX = 101

func setOption(t *testing.T, c *net.UDPConn, option, value int) {
	t.Helper()
	raw, err := c.SyscallConn()
	errtest.Must(t, err)
	if cerr := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, option, value)
	}); cerr != nil {
		t.Fatal(cerr)
	}
	errtest.Must(t, err)
}

// readChecksums returns the checksums of the next n datagrams over IPv6.
func readChecksums(t *testing.T, dev tun.Device, n int) []uint16 {
	t.Helper()
	const offset = 16 // the library needs room before a packet
	bufs, sizes := make([][]byte, dev.BatchSize()), make([]int, dev.BatchSize())
	for i := range bufs {
		bufs[i] = make([]byte, 2048+offset)
	}
	errtest.Must(t, dev.File().SetReadDeadline(time.Now().Add(10*time.Second)))
	var sums []uint16
	for len(sums) < n {
		k, err := dev.Read(bufs, sizes, offset)
		if err != nil {
			t.Fatalf("%d of %d datagrams read: %v", len(sums), n, err)
		}
		for i := range k {
			if p := bufs[i][offset : offset+sizes[i]]; len(p) >= ipv6Header+udpHeader &&
				p[0]>>4 == 6 && p[6] == unix.IPPROTO_UDP {
				sums = append(sums, binary.BigEndian.Uint16(p[ipv6Header+udpCheck:]))
			}
		}
	}
	return sums
}
