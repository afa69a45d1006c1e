package hook

import (
	"net"

	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/internal/tchook"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// vrf is a kind of master whose ports' packets pass no tc programs at the master.
const vrf = "vrf"

// MasterOf returns the kind of the master of link l, or "" if it has none.
func MasterOf(h *nl.Handle, l nl.Link) (string, error) {
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

// Plan returns the programs that a link with a master of this kind must have. A packet that
// arrives at a port of a bond or a bridge passes the ingress hooks of the master too. If the port
// translated the packet, the guard at the master would misjudge it. So only the master translates.
func Plan(l nl.Link, master string) map[tchook.Direction]string {
	a := l.Attrs()
	ethernet := a.EncapType == "ether"
	switch {
	case a.Flags&net.FlagLoopback != 0 || l.Type() == "ifb":
		return nil
	case a.Group == abi.PodGroup && ethernet:
		return map[tchook.Direction]string{tchook.Ingress: ProgPodIn, tchook.Egress: ProgPodOut}
	case a.Group == abi.TunnelGroup && !ethernet:
		return map[tchook.Direction]string{tchook.Ingress: ProgTunnelIn,
			tchook.Egress: ProgTunnelOut}
	case a.Group == abi.PodGroup || a.Group == abi.TunnelGroup:
		return nil
	case master != "" && master != vrf:
		return nil
	case ethernet:
		return map[tchook.Direction]string{tchook.Ingress: ProgIn}
	}
	return map[tchook.Direction]string{tchook.Ingress: ProgInL3}
}
