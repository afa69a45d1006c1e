package nftables

import (
	"net/netip"
	"testing"

	"github.com/mdlayher/netlink"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// FuzzDropLog reads packets of any bytes, which pods choose. A packet that is read has addresses of
// one family, and a reason that names a counter.
func FuzzDropLog(f *testing.F) {
	tcp4 := []byte{0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2, 0, 1, 0, 80}
	udp6 := append([]byte{0x60, 0, 0, 0, 0, 8, 17, 64, 15: 1, 31: 2, 39: 3}, 0, 1, 0, 53)
	for _, packet := range [][]byte{tcp4, udp6, tcp4[:22], tcp4[:19], udp6[:39], {0x4f}, {0x10}, nil} {
		f.Add("in_c0\x00", packet, []byte{8, 0, 1, 0})
		f.Add("policy_admin\x00", packet, []byte{})
		f.Add("mine", packet, []byte{8})
	}
	f.Fuzz(func(t *testing.T, prefix string, packet, header []byte) {
		e := netlink.NewAttributeEncoder()
		e.Bytes(attrHeader, header)
		e.Bytes(attrPayload, packet)
		e.Bytes(attrPrefix, []byte(prefix))
		b, err := e.Encode()
		if err != nil {
			t.Skip() // too long for an attribute
		}
		d, ok := readDropped(append(make([]byte, netfilterHeader), b...))
		if ok && (d.Src.Is4() != d.Dst.Is4() || !d.Src.IsValid() || reasonOf(d.Reason) == "" &&
			d.Reason != denied[policy.Ingress] && d.Reason != denied[policy.Egress]) {
			t.Errorf("%+v", d)
		}
		readDropped(packet)
	})
}

func TestDroppedPacketIsRead(t *testing.T) {
	v4 := policy.Flow{Src: netip.MustParseAddr("198.18.0.1"), Dst: netip.MustParseAddr("198.18.0.2"),
		Proto: policy.TCP, Port: 80}
	packet := []byte{0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2, 0, 1, 0, 80}
	var f policy.Flow

	if !readPacket(packet, &f) || f != v4 {
		t.Errorf("%+v, want %+v", f, v4)
	}
	packet[7] = 1 // a later fragment has no ports
	if v4.Port, f = 0, (policy.Flow{}); !readPacket(packet, &f) || f != v4 {
		t.Errorf("%+v, want %+v", f, v4)
	}

	e := netlink.NewAttributeEncoder()
	e.Bytes(attrHeader, []byte{8, 0, 1, 0}) // hook input
	e.Bytes(attrPayload, packet)
	e.String(attrPrefix, "out_c1")
	b, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	v4.ToNode = true
	want := Dropped{Flow: v4, Reason: "policy_egress"}
	if got, ok := readDropped(append(make([]byte, netfilterHeader), b...)); !ok || got != want {
		t.Errorf("%+v, want %+v", got, want)
	}

	for prefix, want := range map[string]string{"in_c1": "policy_ingress", "out_c1": "policy_egress",
		"policy_admin": "policy_admin", "policy_unknown_peer": "policy_unknown_peer", "other": ""} {
		if got := reasonOf(prefix); got != want {
			t.Errorf("prefix %s is of reason %q, want %q", prefix, got, want)
		}
	}
}
