package nflog

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nettest"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

// tcp4 and udp6 return packets with ports, whose fragment offset a test can change.
func tcp4() []byte {
	return []byte{0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2, 0, 7, 0,
		80}
}

func udp6(extensions ...byte) []byte {
	next := byte(unix.IPPROTO_UDP)
	if len(extensions) > 0 {
		next = unix.IPPROTO_DSTOPTS
	}
	h := []byte{0x60, 0, 0, 0, 0, byte(8 + len(extensions)), next, 64, 0xfd, 23: 1, 24: 0xfd, 39: 2}
	return append(append(h, extensions...), 0, 7, 0, 53)
}

func TestHeadersAreRead(t *testing.T) {
	a4, b4 := netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("198.18.0.2")
	a6, b6 := netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")
	fragment := tcp4()
	fragment[7] = 1
	options := []byte{unix.IPPROTO_UDP, 0, 1, 4, 0, 0, 0, 0}
	later := udp6(unix.IPPROTO_UDP, 0, 0, 8, 0, 0, 0, 1)
	later[6] = unix.IPPROTO_FRAGMENT

	const dstopts = unix.IPPROTO_DSTOPTS
	for name, c := range map[string]struct {
		packet []byte
		want   Headers
	}{
		"TCP":                 {tcp4(), Headers{a4, b4, unix.IPPROTO_TCP, 7, 80, 40}},
		"a later fragment":    {fragment, Headers{a4, b4, unix.IPPROTO_TCP, 0, 0, 40}},
		"cut in its ports":    {tcp4()[:22], Headers{a4, b4, unix.IPPROTO_TCP, 0, 0, 40}},
		"UDP":                 {udp6(), Headers{a6, b6, unix.IPPROTO_UDP, 7, 53, 48}},
		"behind options":      {udp6(options...), Headers{a6, b6, unix.IPPROTO_UDP, 7, 53, 56}},
		"a later fragment, 6": {later, Headers{a6, b6, unix.IPPROTO_UDP, 0, 0, 56}},
		"cut in its options":  {udp6(options...)[:44], Headers{a6, b6, dstopts, 0, 0, 56}},
	} {
		t.Run(name, func(t *testing.T) {
			if got, ok := ReadHeaders(c.packet); !ok || got != c.want {
				t.Errorf("%+v %t, want %+v", got, ok, c.want)
			}
		})
	}
	for name, packet := range map[string][]byte{"nothing": nil, "cut in its header": tcp4()[:19],
		"cut in its header, 6": udp6()[:39], "a header of 60 bytes": {0x4f}, "version 1": {0x10}} {
		if h, ok := ReadHeaders(packet); ok {
			t.Errorf("%s: %+v", name, h)
		}
	}
}

// FuzzPacket reads messages with arbitrary bytes, because pods choose the bytes of a packet. If a
// packet has addresses, both must have the same family.
func FuzzPacket(f *testing.F) {
	for _, packet := range [][]byte{tcp4(), udp6(), tcp4()[:22], tcp4()[:19], {0x4f}, {0x10}, nil} {
		f.Add("pod_spoofed_source\x00", packet, []byte{8, 0, 1, 0}, []byte{0, 0, 0, 7})
		f.Add("", packet, []byte{}, []byte{1})
	}
	f.Fuzz(func(t *testing.T, prefix string, packet, header, link []byte) {
		e := netlink.NewAttributeEncoder()
		e.Bytes(attrHeader, header)
		e.Bytes(attrIn, link)
		e.Bytes(attrPayload, packet)
		e.Bytes(attrPrefix, []byte(prefix))
		b, err := e.Encode()
		if err != nil {
			return // No attribute is that long.
		}
		p, ok := read(append(make([]byte, genericSize), b...))
		if !ok || p.Src.IsValid() != p.Dst.IsValid() || p.Src.Is4() != p.Dst.Is4() ||
			!p.Src.IsValid() && p.Headers != (Headers{}) {
			t.Errorf("%+v, %t", p, ok)
		}
		read(packet)
	})
}

// The kernel delivers a logged packet, up to the length that the rule sets. A group has at most one
// listener.
func TestLoggedPacketIsReceived(t *testing.T) {
	ns := nettest.NewNS(t)
	nettest.NeedProgram(t, "nft")
	const group = 77
	var c *Conn
	ns.Run(t, func() (err error) {
		if c, err = Open(group, 64); err != nil {
			return err
		}
		if second, err := Open(group, 64); !errors.Is(err, unix.EPERM) {
			t.Errorf("a second listener: %v, %v", second, err)
		}
		out, err := exec.Command("nft", "table inet t { chain c { type filter hook input priority "+
			`0; udp dport 4242 log prefix "why" group 77 snaplen 48 drop; }; }`).CombinedOutput()
		if err != nil {
			t.Errorf("nft: %s", out)
		}
		return err
	})
	defer c.Close()

	var port uint16
	ns.Run(t, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
			return err
		}
		name, err := unix.Getsockname(fd)
		if err != nil {
			return err
		}
		port = uint16(name.(*unix.SockaddrInet4).Port)
		return unix.Sendto(fd, make([]byte, 100), 0,
			&unix.SockaddrInet4{Port: 4242, Addr: [4]byte{127, 0, 0, 1}})
	})
	packets, err := c.Receive()
	if err != nil || len(packets) != 1 {
		t.Fatalf("%+v, %v", packets, err)
	}
	lo := netip.MustParseAddr("127.0.0.1")
	want := Packet{Prefix: "why", Hook: unix.NF_INET_LOCAL_IN, In: 1,
		Headers: Headers{lo, lo, unix.IPPROTO_UDP, port, 4242, 128}}
	if packets[0] != want {
		t.Errorf("%+v, want %+v", packets[0], want)
	}
}

func TestIndexOfALinkHasFourBytes(t *testing.T) {
	if n := index(binary.BigEndian.AppendUint32(nil, 7)); n != 7 || index([]byte{7}) != 0 {
		t.Errorf("%d", n)
	}
}
