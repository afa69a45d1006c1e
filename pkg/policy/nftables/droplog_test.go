package nftables

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nflog"
	"github.com/kubeveil/kubeveil/pkg/policy"
)

func TestDroppedPacketHasAReasonOfOurs(t *testing.T) {
	p := nflog.Packet{Prefix: "policy_egress", Hook: unix.NF_INET_LOCAL_IN, In: 7,
		Headers: nflog.Headers{Src: netip.MustParseAddr("198.18.0.1"),
			Dst: netip.MustParseAddr("198.18.0.2"), Proto: unix.IPPROTO_TCP, SrcPort: 4000,
			DstPort: 80}}
	want := Dropped{Reason: "policy_egress", Packet: p, Flow: policy.Flow{Src: p.Src, Dst: p.Dst,
		Proto: policy.TCP, Port: 80, ToNode: true}}
	if got, ok := droppedBy(p); !ok || got != want {
		t.Errorf("drop %+v, %t, want %+v", got, ok, want)
	}

	for prefix, want := range map[string]bool{"policy_ingress": true, "policy_pending": true,
		"policy_unstamped": true, "policy_ingress_": false, "": false} {
		p.Prefix = prefix
		if _, ok := droppedBy(p); ok != want {
			t.Errorf("prefix %q is ours: %t, want %t", prefix, ok, want)
		}
	}
	p.Prefix, p.Headers = "policy_egress", nflog.Headers{}
	if d, ok := droppedBy(p); ok {
		t.Errorf("without an IP header: %+v", d)
	}
}
