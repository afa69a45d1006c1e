package leak_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/kubeveil/kubeveil/pkg/leak"
)

// A cluster with two nodes: tunnel datagrams between them may be on the network, and no frame may
// show an address of a pod.
func ExampleClassify() {
	nodeA, nodeB := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	podA, podB := netip.MustParseAddr("10.244.1.7"), netip.MustParseAddr("10.244.2.9")
	rules := leak.Rules{
		Inner:      []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
		Nodes:      []netip.Addr{nodeA, nodeB},
		TunnelPort: 51820,
		Canary:     []byte("only pods say this"),
	}

	message := make([]byte, 48)
	message[0] = 4 // WireGuard's type of transport messages
	for _, frame := range [][]byte{
		udpFrame(nodeA, nodeB, 51820, message),
		udpFrame(podA, podB, 53, []byte("a question")),
		udpFrame(nodeA, nodeB, 51820, append(message, rules.Canary...)),
	} {
		v := leak.Classify(&rules, frame)
		fmt.Println(v.Kind, v.Kind.Allowed(), v.Kind.Leak())
	}
	// Output:
	// tunnel true false
	// leak-address false true
	// leak-canary false true
}

// udpFrame returns an Ethernet frame with a UDP datagram from a port to the same port.
func udpFrame(src, dst netip.Addr, port uint16, payload []byte) []byte {
	be := binary.BigEndian
	ethernet := append(make([]byte, 12), 0x08, 0x00)

	ip := make([]byte, 20)
	ip[0], ip[8], ip[9] = 0x45, 64, leak.UDP
	be.PutUint16(ip[2:], uint16(28+len(payload)))
	copy(ip[12:], src.AsSlice())
	copy(ip[16:], dst.AsSlice())

	udp := make([]byte, 8)
	be.PutUint16(udp, port)
	be.PutUint16(udp[2:], port)
	be.PutUint16(udp[4:], uint16(8+len(payload)))

	return append(append(append(ethernet, ip...), udp...), payload...)
}
