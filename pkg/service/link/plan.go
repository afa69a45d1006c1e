package link

import (
	"net"

	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/internal/tchook"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// vrf is a kind of master whose ports' packets pass no tc programs at the master.
const vrf = "vrf"

// masterOf returns the kind of the master of link l, or "" if it has none.
func masterOf(h *nl.Handle, l nl.Link) (string, error) {
	index := l.Attrs().MasterIndex
	if index == 0 {
		return "", nil
	}
	master, err := h.LinkByIndex(index)
	if err != nil {
		return "", tchook.LinkError(err)
	}
	return master.Type(), nil
}

// planLink returns the programs that a link with a master of this kind must have. A packet that
// arrives at a port of a bond or a bridge passes the ingress hooks of the master too. If the port
// translated the packet, the guard at the master would misjudge it. So only the master translates.
func planLink(l nl.Link, master string) map[direction]string {
	a := l.Attrs()
	ethernet := a.EncapType == "ether"
	switch {
	case a.Flags&net.FlagLoopback != 0 || l.Type() == "ifb":
		return nil
	case a.Group == abi.PodGroup && ethernet:
		return map[direction]string{ingress: progPodIn, egress: progPodOut}
	case a.Group == abi.TunnelGroup && !ethernet:
		return map[direction]string{ingress: progTunnelIn, egress: progTunnelOut}
	case a.Group == abi.PodGroup || a.Group == abi.TunnelGroup:
		return nil
	case master != "" && master != vrf:
		return nil
	case ethernet:
		return map[direction]string{ingress: progIn}
	}
	return map[direction]string{ingress: progInL3}
}
