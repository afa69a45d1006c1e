package hook

import (
	"net"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/internal/tchook"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

func TestWhichProgramsALinkHas(t *testing.T) {
	link := func(encap string, group uint32, flags net.Flags) nl.Link {
		a := nl.NewLinkAttrs()
		a.Index, a.Name, a.EncapType, a.Group, a.Flags = 7, "x", encap, group, flags
		return &nl.GenericLink{LinkAttrs: a, LinkType: "veth"}
	}

	type programs = map[tchook.Direction]string
	for _, c := range []struct {
		situation string
		link      nl.Link
		master    string
		want      programs
	}{
		{"network card", link("ether", 0, 0), "", programs{tchook.Ingress: ProgIn}},
		{"tunnel of something else", link("none", 0, 0), "",
			programs{tchook.Ingress: ProgInL3}},
		{"port of a bond", link("ether", 0, 0), "bond", nil},
		{"port of a bridge", link("ether", 0, 0), "bridge", nil},
		{"virtual function of a network card", link("ether", 0, 0), "netvsc", nil},
		{"in a VRF", link("ether", 0, 0), "vrf", programs{tchook.Ingress: ProgIn}},
		{"of a pod", link("ether", abi.PodGroup, 0), "",
			programs{tchook.Ingress: ProgPodIn, tchook.Egress: ProgPodOut}},
		{"our tunnel", link("none", abi.TunnelGroup, 0), "",
			programs{tchook.Ingress: ProgTunnelIn, tchook.Egress: ProgTunnelOut}},
		{"lo", link("loopback", 0, net.FlagLoopback), "", nil},
	} {
		if diff := cmp.Diff(c.want, Plan(c.link, c.master)); diff != "" {
			t.Errorf("programs of %s (-want +got): %s", c.situation, diff)
		}
	}
}
