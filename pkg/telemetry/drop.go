package telemetry

import (
	"fmt"
	"net/netip"
	"time"
)

// DropsPath is the admin socket's page of dropped packets. Its answer is a Drops. The parameters
// ?after=NUMBER, ?reason=NAME, ?pod=NAMESPACE/NAME and ?since=TIME (RFC 3339) select packets.
const DropsPath = "/v1/drops"

// Drops holds samples of dropped packets, oldest first.
type Drops struct {
	DropSamples
	// Before counts the packets without a sample that were dropped before Since.
	Before uint64 `json:"before"`
	// Tunnels counts the packets that veil-wg dropped since its process began, by reason. They
	// have no samples. Only answers to requests without ?after have it.
	Tunnels map[string]uint64 `json:"tunnels,omitempty"`
	// Unread is why Tunnels is missing, or empty.
	Unread string `json:"unread,omitempty"`
	// Last is the Number of the newest sample that was looked at, selected or not. It is larger
	// than all numbers of an earlier veild. More reports whether there may be samples after Last,
	// because the answer has the largest size: request them with ?after.
	Last    uint64          `json:"last"`
	More    bool            `json:"more,omitempty"`
	Packets []DroppedPacket `json:"packets"`
}

// DroppedPacket is the sample of a dropped packet: its headers, and its pods, peer and policies.
type DroppedPacket struct {
	// Number increases from sample to sample.
	Number uint64    `json:"number"`
	Time   time.Time `json:"time"`
	// Reason is the name of the drop reason.
	Reason string `json:"reason"`
	// In is the link on which the packet arrived, and Out the link on which it would have left. An
	// empty name means that there was no such link.
	In  string `json:"in,omitempty"`
	Out string `json:"out,omitempty"`
	// SrcPod and DstPod are the pods that sent the packet and would have received it, as
	// NAMESPACE/NAME, or the link of a pod that the runtime did not name. They are empty where no
	// pod is known.
	SrcPod string `json:"srcPod,omitempty"`
	DstPod string `json:"dstPod,omitempty"`
	// Src and Dst are not valid if the packet had no IP header.
	Src     netip.Addr `json:"src,omitzero"`
	Dst     netip.Addr `json:"dst,omitzero"`
	SrcPort uint16     `json:"srcPort,omitempty"`
	DstPort uint16     `json:"dstPort,omitempty"`
	// Protocol is a name such as tcp, or the number of the protocol.
	Protocol string `json:"protocol,omitempty"`
	// Length is the length in the packet's IP header, in bytes.
	Length int `json:"length,omitempty"`
	// Peer is the other node that the packet came from or was sent to; empty if there was none.
	Peer string `json:"peer,omitempty"`
	// Policies and Rule denied the packet. They are empty if no policy denied it. MorePolicies
	// counts the policies that denied it too and that Policies does not name.
	Policies     []string `json:"policies,omitempty"`
	MorePolicies int      `json:"morePolicies,omitempty"`
	Rule         string   `json:"rule,omitempty"`
}

// ProtocolName returns the name of an IP protocol that has ports or is ICMP, otherwise the number.
func ProtocolName(number uint8) string {
	switch number {
	case 1:
		return "icmp"
	case 6:
		return "tcp"
	case 17:
		return "udp"
	case 58:
		return "icmp6"
	case 132:
		return "sctp"
	}
	return fmt.Sprint(number)
}

// DropSamples describes the samples of dropped packets.
type DropSamples struct {
	// Since is when this veild began to receive samples. Zero means that it receives none.
	Since time.Time `json:"since,omitzero"`
	// Problem is the reason why some or all dropped packets are not sampled.
	Problem string `json:"problem,omitempty"`
	// Skipped counts by reason the packets that were dropped since Since and not sampled.
	Skipped map[string]uint64 `json:"skipped,omitempty"`
}

var (
	dropsSkippedDesc = desc("drop_samples_skipped_total",
		"Dropped packets that veilctl drops does not show, because their reason or their pod "+
			"exceeded its share of the samples, by reason. A packet counts up to one scrape late.",
		"reason")
	dropsSampledDesc = desc("drops_sampled", "1 if veilctl drops shows all kinds of dropped "+
		"packets, 0 if some or all are only counted. veilctl status has the reason.")
)

func collectDrops(d *DropSamples, gauge gaugeFunc, counter counterFunc) {
	if d == nil {
		return
	}
	gauge(dropsSampledDesc, one(d.Problem == ""))
	for reason, n := range d.Skipped {
		counter(dropsSkippedDesc, n, reason)
	}
}
