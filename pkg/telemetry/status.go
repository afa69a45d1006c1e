package telemetry

import (
	"net/netip"
	"time"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// Snapshot returns the state of the node now. It is called from several
// goroutines, once for each scrape and status request, must not wait for the API
// server, and should answer within a second.
type Snapshot func() Status

// Status is everything that is shown of a node. It is the answer of the admin
// socket in JSON; fields are added, never renamed. It holds no secret.
type Status struct {
	Node    string    `json:"node"`
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	// Ready reports whether the first apply is done and the guard is in force;
	// NotReady says why not. The server fills both in.
	Ready    bool     `json:"ready"`
	NotReady []string `json:"notReady,omitempty"`

	Source  Source            `json:"source"`
	Table   Table             `json:"table"`
	Devices []Device          `json:"devices"`
	Peers   []Peer            `json:"peers"`
	Pods    int               `json:"pods"`
	Guard   Guard             `json:"guard"`
	MTU     MTU               `json:"mtu"`
	Refused []cluster.Refusal `json:"refused,omitempty"`
	// InClear names what pods and hosts send in clear as configured (docs/security.md, exceptions).
	InClear []string `json:"inClear,omitempty"`
	// Flowtable is "on" where packets of known flows take the kernel's flow table, else why they do
	// not; empty is not known yet.
	Flowtable string `json:"flowtable,omitempty"`
	// TunnelSources says from where tunnel datagrams are taken; empty is not known yet.
	TunnelSources string `json:"tunnelSources,omitempty"`
	// Services is nil where another program translates services.
	Services *Services `json:"services,omitempty"`
	// Policy is nil where no network policies are enforced.
	Policy *Policy `json:"policy,omitempty"`
	// Connections is nil where pods have no limit of connections.
	Connections *Connections `json:"connections,omitempty"`
	// Problems are sentences about what is wrong now, with what to do.
	Problems []string `json:"problems,omitempty"`
}

// Source is where the table comes from.
type Source struct {
	// Kind is "kubernetes", "snapshot", or "snapshot, waiting for kubernetes".
	Kind   string `json:"kind"`
	Synced bool   `json:"synced"`
	// Changed is when the source last yielded; zero is never.
	Changed time.Time `json:"changed,omitzero"`
}

// Table is how far the kernel follows the source.
type Table struct {
	// Revision is the newest that the source yielded, Applied the one in force.
	Revision uint64 `json:"revision"`
	Applied  uint64 `json:"applied"`
	// Waiting is since when there has been a revision that is not applied; zero when all is.
	Waiting time.Time `json:"waiting,omitzero"`
	// Prefixes and NodeAddrs count what is protected.
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
	// Drops are what veil-wg dropped or refused since its process began, by reason; empty where it
	// does not count.
	Drops map[string]uint64 `json:"drops,omitempty"`
	// Offloads are those that veil-wg knows, and whether it uses them; empty where it does not tell.
	Offloads map[string]bool `json:"offloads,omitempty"`
}

// PeerState is the condition of a peer.
type PeerState string

// States of a peer, from best to worst.
const (
	// PeerUp was heard within the last three minutes (WireGuard's REJECT_AFTER_TIME).
	PeerUp PeerState = "up"
	// PeerIdle was not, and nothing was sent to it that waits for an answer: no problem.
	PeerIdle PeerState = "idle"
	// PeerSilent was sent something, and nothing authentic came back for 15 s.
	PeerSilent PeerState = "silent"
	// PeerRefused made a claim that is not believed.
	PeerRefused PeerState = "refused"
	// PeerKeyless is a node that has published no key: traffic to it is unreachable.
	PeerKeyless PeerState = "keyless"
)

// peerStates is every state, so that metrics show a zero for each.
var peerStates = []PeerState{PeerUp, PeerIdle, PeerSilent, PeerRefused, PeerKeyless}

// Peer is another node on one tunnel device; a node that is reached through
// several devices appears once for each, one that is reached through none once
// with an empty Device.
type Peer struct {
	Name       string         `json:"name"`
	State      PeerState      `json:"state"`
	Device     string         `json:"device,omitempty"`
	PublicKey  wgkey.Public   `json:"publicKey,omitzero"`
	Endpoint   netip.AddrPort `json:"endpoint,omitzero"`
	AllowedIPs []netip.Prefix `json:"allowedIPs,omitempty"`
	// Handshake is when the last one completed; zero is never.
	Handshake time.Time `json:"handshake,omitzero"`
	// Heard is when something authentic last came from it, as far as this veild
	// has seen; zero is never.
	Heard time.Time `json:"heard,omitzero"`
	// SilentSince is since when what was sent has had no answer, in PeerSilent only.
	SilentSince time.Time `json:"silentSince,omitzero"`
	// Received and Sent count bytes inside UDP, since the device was made.
	Received uint64 `json:"received"`
	Sent     uint64 `json:"sent"`
	// MTU of the route to the peer, bytes; 0 is the device's.
	MTU int `json:"mtu,omitempty"`
	// Singly reports whether veil-wg sends datagrams to the peer one by one, because the path loses
	// segmented ones.
	Singly bool `json:"singly,omitempty"`
}

// Guard is the state of the plaintext guard.
type Guard struct {
	InForce bool `json:"inForce"`
	// Hook is "tcx" or "clsact".
	Hook string `json:"hook,omitempty"`
	// Links are the interfaces it is attached to.
	Links []string `json:"links"`
	Drops []Drop   `json:"drops"`
	// MarksRestored counts packets of pods and tunnels whose mark another program had overwritten.
	MarksRestored uint64 `json:"marksRestored,omitempty"`
	// Ranges and NodeAddrs are what must not be seen in clear.
	Ranges    []netip.Prefix `json:"ranges"`
	NodeAddrs []netip.Addr   `json:"nodeAddrs"`
}

// Drop counts the packets that were dropped for one reason.
type Drop struct {
	Number uint32 `json:"number"`
	// Name is the reason in one word, as in metrics; Sentence is for people.
	Name     string `json:"name"`
	Sentence string `json:"sentence"`
	Packets  uint64 `json:"packets"`
	// Harmless reports whether every pod sends such packets, so that they are no sign of a fault.
	Harmless bool `json:"harmless,omitempty"`
}

// Blocked returns how many packets the guard dropped, without harmless ones.
func (g Guard) Blocked() (packets uint64) {
	for _, d := range g.Drops {
		if !d.Harmless {
			packets += d.Packets
		}
	}
	return packets
}

// MTU is how the MTU of pods came about, bytes.
type MTU struct {
	Underlay int `json:"underlay"`
	Pod      int `json:"pod"`
	// Explanation has a line for each step of the arithmetic.
	Explanation []string `json:"explanation,omitempty"`
}

// Lag is for how long the kernel has been behind the source.
func (t Table) Lag(now time.Time) time.Duration {
	if t.Waiting.IsZero() {
		return 0
	}
	return max(0, now.Sub(t.Waiting))
}
