package telemetry

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// StatusPath is the admin socket's page of the status. Its answer is a Status.
const StatusPath = "/v1/status"

// Snapshot returns the present state of the node. Several goroutines call it, once for each scrape
// and status request. It must not wait for the API server, should return within a second, and
// returns an error if it cannot within ten.
type Snapshot func() (Status, error)

// Status holds everything that is shown about a node, and no secret. Its JSON is the answer of
// StatusPath. Fields are added, never renamed.
type Status struct {
	Node    string    `json:"node"`
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	// Ready reports whether the first apply is done and the guard is in force;
	// NotReady holds the reasons why not. The server fills in both.
	Ready    bool     `json:"ready"`
	NotReady []string `json:"notReady,omitempty"`

	Source  Source            `json:"source"`
	Table   TableStatus       `json:"table"`
	Devices []Device          `json:"devices"`
	Peers   []Peer            `json:"peers"`
	Pods    int               `json:"pods"`
	Guard   Guard             `json:"guard"`
	MTU     MTU               `json:"mtu"`
	Refused []cluster.Refusal `json:"refused,omitempty"`
	// Sites are the other clusters of the configuration.
	Sites []Site `json:"sites,omitempty"`
	// InClear names the kinds of traffic that the configuration leaves in clear (exceptions of
	// docs/security.md).
	InClear []string `json:"inClear,omitempty"`
	// Flowtable is "on" if packets of known flows use the kernel's flow table. Otherwise it is the
	// reason why they do not. It is empty until this is known.
	Flowtable string `json:"flowtable,omitempty"`
	// TunnelSources describes from which addresses tunnel datagrams are accepted. It is empty until
	// it is known.
	TunnelSources string `json:"tunnelSources,omitempty"`
	// Services is nil where another program translates services.
	Services *Services `json:"services,omitempty"`
	// Policy is nil where no network policies are enforced.
	Policy *Policy `json:"policy,omitempty"`
	// Connections is nil where pods have no limit of connections.
	Connections *Connections `json:"connections,omitempty"`
	// DropSamples describes what veilctl drops shows. It is nil where nothing samples.
	DropSamples *DropSamples `json:"dropSamples,omitempty"`
	// MetricsRefused counts the requests for metrics that came from other hosts. They are refused,
	// because the answers would cross the network in clear.
	MetricsRefused uint64 `json:"metricsRefused,omitempty"`
	// Problems are sentences about what is wrong now, with remedies.
	Problems []string `json:"problems,omitempty"`
}

// Source describes the source of the table of nodes.
type Source struct {
	// Kind is "kubernetes", "snapshot", or "snapshot, waiting for kubernetes".
	Kind   string `json:"kind"`
	Synced bool   `json:"synced"`
	// Changed is when the source last yielded a revision. Zero means that it has not yielded yet.
	Changed time.Time `json:"changed,omitzero"`
}

// TableStatus describes which revision of the source is in force in the kernel.
type TableStatus struct {
	// Revision is the newest revision that the source yielded; Applied is the revision in force.
	Revision uint64 `json:"revision"`
	Applied  uint64 `json:"applied"`
	// Waiting is the time since which a revision waits to be applied. It is zero if the newest
	// revision is applied.
	Waiting time.Time `json:"waiting,omitzero"`
	// Prefixes and NodeAddrs count the protected prefixes and node addresses.
	Prefixes  int `json:"prefixes"`
	NodeAddrs int `json:"nodeAddrs"`
}

// Device is a tunnel device.
type Device struct {
	Name string `json:"name"`
	// Kind is "kernel" or "userspace".
	Kind string `json:"kind"`
	// PublicKey is zero while the device has no private key.
	PublicKey wgkey.Public `json:"publicKey,omitzero"`
	Epoch     uint32       `json:"epoch"`
	Port      int          `json:"port"`
	MTU       int          `json:"mtu"`
	// Up reports whether the device exists, is up, and answers.
	Up bool `json:"up"`
	// Drops counts by reason the packets that veil-wg dropped or refused since its process began.
	// It is empty if veil-wg does not count them.
	Drops map[string]uint64 `json:"drops,omitempty"`
	// Offloads reports for each offload that veil-wg supports whether it is used. It is empty if
	// veil-wg does not report offloads.
	Offloads map[string]bool `json:"offloads,omitempty"`
}

// PeerState is the condition of a peer.
type PeerState string

// States of a peer, from best to worst.
const (
	// PeerUp: the peer was heard within the last three minutes (WireGuard's REJECT_AFTER_TIME).
	PeerUp PeerState = "up"
	// PeerIdle: the peer was not heard, but nothing sent to it waits for an answer. This is normal.
	PeerIdle PeerState = "idle"
	// PeerSilent: something was sent to the peer, and nothing authentic came back for 15 s.
	PeerSilent PeerState = "silent"
	// PeerRefused: the peer claims a key, an address or a prefix that was refused.
	PeerRefused PeerState = "refused"
	// PeerKeyless: the node has published no key, so it is unreachable.
	PeerKeyless PeerState = "keyless"
)

// peerStates lists every state, so that metrics have a series, possibly 0, for each.
var peerStates = []PeerState{PeerUp, PeerIdle, PeerSilent, PeerRefused, PeerKeyless}

// Peer is another node on one tunnel device. A node on several devices has a Peer for each device.
// A node on no device has one Peer with an empty Device.
type Peer struct {
	Name       string         `json:"name"`
	State      PeerState      `json:"state"`
	Device     string         `json:"device,omitempty"`
	PublicKey  wgkey.Public   `json:"publicKey,omitzero"`
	Endpoint   netip.AddrPort `json:"endpoint,omitzero"`
	AllowedIPs []netip.Prefix `json:"allowedIPs,omitempty"`
	// Handshake is when the last handshake completed. Zero means that none has.
	Handshake time.Time `json:"handshake,omitzero"`
	// Heard is when this veild last noticed an authentic packet of the peer. Zero means never.
	Heard time.Time `json:"heard,omitzero"`
	// SilentSince is the time since which packets to the peer have had no answer. It is set only in
	// state PeerSilent.
	SilentSince time.Time `json:"silentSince,omitzero"`
	// Received and Sent count bytes of UDP payload since the device was created.
	Received uint64 `json:"received"`
	Sent     uint64 `json:"sent"`
	// MTU is the MTU of the route to the peer in bytes. 0 means the MTU of the device.
	MTU int `json:"mtu,omitempty"`
	// Singly reports whether veil-wg sends datagrams to the peer one by one, because the path loses
	// datagrams that were sent with segmentation offload.
	Singly bool `json:"singly,omitempty"`
}

// Site is another cluster. Its ranges are closed, except through the tunnels to its nodes.
type Site struct {
	cluster.Site
	// Nodes counts the nodes of the site that are peers.
	Nodes int `json:"nodes"`
	// Exports is nil unless the site reaches exported endpoints only.
	Exports *SiteExports `json:"exports,omitempty"`
}

// SiteExports counts the exported endpoints of this node, once for each port.
type SiteExports struct {
	// Listed reports whether the exports have been read since veild started. Before that, none is
	// open.
	Listed bool `json:"listed"`
	// Open counts the endpoints that the site may open connections to.
	Open int `json:"open"`
	// NoPods counts the endpoints without a pod of the export's namespace on this node, and
	// Excess those beyond the bounds. They are of all sites, and closed.
	NoPods int `json:"noPods,omitempty"`
	Excess int `json:"excess,omitempty"`
	// Ended counts the known connections of all sites that were deleted because their endpoint is
	// not open any more.
	Ended uint64 `json:"ended,omitempty"`
}

// Guard is the state of the plaintext guard.
type Guard struct {
	InForce bool `json:"inForce"`
	// Hook is "tcx" or "clsact".
	Hook string `json:"hook,omitempty"`
	// Links are the interfaces that the guard is attached to.
	Links []string `json:"links"`
	// Unguarded are the interfaces that the guard must be attached to and is not.
	Unguarded []string `json:"unguarded,omitempty"`
	Drops     []Drop   `json:"drops"`
	// MarksRestored counts packets of pods and tunnels whose mark another program had overwritten.
	MarksRestored uint64 `json:"marksRestored,omitempty"`
	// Ranges and NodeAddrs are the addresses that must not occur in clear.
	Ranges    []netip.Prefix `json:"ranges"`
	NodeAddrs []netip.Addr   `json:"nodeAddrs"`
}

// Drop counts the packets that were dropped for one reason.
type Drop struct {
	Number uint32 `json:"number"`
	// Name is the reason in one word, as in metrics. Sentence explains it to people.
	Name     string `json:"name"`
	Sentence string `json:"sentence"`
	Packets  uint64 `json:"packets"`
	// Harmless reports whether every pod sends such packets, so that they do not indicate a fault.
	Harmless bool `json:"harmless,omitempty"`
}

// Blocked returns how many packets the guard dropped, except for harmless reasons.
func (g Guard) Blocked() (packets uint64) {
	for _, d := range g.Drops {
		if !d.Harmless {
			packets += d.Packets
		}
	}
	return packets
}

// MTU describes how the MTU of pods was computed. Values are in bytes.
type MTU struct {
	Underlay int `json:"underlay"`
	Pod      int `json:"pod"`
	// Explanation has a line for each step of the arithmetic.
	Explanation []string `json:"explanation,omitempty"`
}

// Lag returns how long a revision has waited to be applied. It returns 0 if no revision waits.
func (t TableStatus) Lag(now time.Time) time.Duration {
	if t.Waiting.IsZero() {
		return 0
	}
	return max(0, now.Sub(t.Waiting))
}

// Faults returns a sentence for each tunnel that does not work, each peer that cannot be reached,
// and each refused claim. veild puts them into its Problems, so that the status of the node, the
// status of the cluster, the metric kubeveil_problems and the exit status agree.
func (s Status) Faults(now time.Time) (faults []string) {
	for _, d := range s.Devices {
		if d.PublicKey == (wgkey.Public{}) {
			faults = append(faults, fmt.Sprintf("tunnel %s (%s) has no key yet", d.Name, d.Kind))
		}
		if !d.Up {
			faults = append(faults, fmt.Sprintf("tunnel %s (%s) is down", d.Name, d.Kind))
		}
	}

	reached, seen := map[string]bool{}, map[string]bool{}
	for _, p := range s.Peers {
		reached[p.Name] = reached[p.Name] || p.State == PeerUp || p.State == PeerIdle
	}
	for _, p := range s.Peers {
		if reached[p.Name] || seen[p.Name] {
			continue
		}
		seen[p.Name] = true
		switch p.State {
		case PeerSilent:
			faults = append(faults, fmt.Sprintf("peer %s has not answered for %s: it is down, or "+
				"the network drops UDP", p.Name, silentFor(p, now).Round(time.Second)))
		case PeerKeyless:
			faults = append(faults, fmt.Sprintf("peer %s has no key: start veild there", p.Name))
		}
	}

	for _, r := range s.Refused {
		faults = append(faults, fmt.Sprintf("refused %s: %s", r.Node, r.Reason))
	}
	return faults
}
