package session

import (
	"net/netip"
	"time"
)

// Verbs of the program veil-tools. In a pod that is measured:
const (
	// VerbIperf runs iperf3: Iperf, answered by IperfDone.
	VerbIperf = "iperf"
	// VerbRoundTrips measures request and response over connections: RoundTrips, answered by a
	// Latency for each.
	VerbRoundTrips = "round-trips"
	// VerbSelf returns where the program runs: no arguments, answered by Self.
	VerbSelf = "self"
	// VerbAwait waits for a connection that sends Await.Token.
	VerbAwait = "await"
)

// In the privileged pod of a node:
const (
	// VerbPlatform returns the kind of machine: answered by Platform.
	VerbPlatform = "platform"
	// VerbTunnel makes the bare WireGuard device: Tunnel, answered by its public key (text).
	VerbTunnel = "tunnel"
	// VerbWire adds to a pod its other interfaces and the node the routes between them: Wire.
	VerbWire = "wire"
	// VerbUnwire removes all of it; it may be repeated.
	VerbUnwire = "unwire"
	// VerbCount reads counters: answered by Counters.
	VerbCount = "count"
	// VerbPrograms counts the runs of BPF programs for a while: Programs, answered by Ran.
	VerbPrograms = "programs"
	// VerbWatch listens on the node's link until VerbJudge: Watch. VerbJudge ends it and is
	// answered by Judgement.
	VerbWatch = "watch"
	VerbJudge = "judge"
)

// Ports of the pod that serves.
const (
	IperfPort      = 5201
	RoundTripsPort = 5202
	AwaitPort      = 5203
)

// Links that a pod receives besides its own.
const (
	ClearLink = "clear0"
	BareLink  = "bare0"
)

// Links that a node receives. Only the suite uses them.
const (
	HostClearLink = "kvbench-clear"
	HostBareLink  = "kvbench-bare"
	BareDevice    = "kvbench-wg"
)

// Iperf are arguments of iperf3.
type Iperf struct {
	Args []string `json:"args"`
}

// IperfDone is the output of iperf3 and how it ended. An empty Failure means exit status 0.
type IperfDone struct {
	Stdout  []byte `json:"stdout"`
	Stderr  string `json:"stderr"`
	Failure string `json:"failure"`
}

// RoundTrips configures the measurement of round trips. A turn has one transaction with each of To,
// over a connection to each and in an order drawn for each turn. Turns end when there were Count
// turns and Least has passed, or after Most. Other work of the machine so affects all targets
// alike.
type RoundTrips struct {
	To    []netip.AddrPort `json:"to"`
	Size  int              `json:"size"`
	Count int              `json:"count"`
	Least time.Duration    `json:"least"`
	Most  time.Duration    `json:"most"`
	// Fill is the content of messages, repeated; empty fills them with zeros.
	Fill string `json:"fill"`
}

// Latency of round trips.
type Latency struct {
	Count int           `json:"count"`
	P50   time.Duration `json:"p50"`
	P99   time.Duration `json:"p99"`
}

// Self describes the place where a program runs.
type Self struct {
	// NetNS is the inode of its network namespace.
	NetNS uint64 `json:"netns"`
	// MTU is the MTU of eth0 in bytes, or 0 where there is no eth0.
	MTU int `json:"mtu"`
}

// Await names a connection.
type Await struct {
	Token string `json:"token"`
}

// Tunnel describes how to make the bare device.
type Tunnel struct {
	Port int `json:"port"`
	MTU  int `json:"mtu"`
	// Like is the link whose queue length it gets; "" leaves it.
	Like string `json:"like"`
	// Service is translated to Endpoint on the way to it.
	Service  netip.Addr `json:"service"`
	Endpoint netip.Addr `json:"endpoint"`
}

// Wire describes what a node and a pod on it receive.
type Wire struct {
	// NetNS is the inode of the pod's network namespace.
	NetNS uint64 `json:"netns"`
	// Clear is the pod's link in clear. Other, the pod's address on the other node, is routed to
	// Via, that node, without a tunnel.
	Clear Link       `json:"clear"`
	Other netip.Addr `json:"other"`
	Via   netip.Addr `json:"via"`
	// Bare is the pod's link to the bare device, and Peer its other end; nil without one.
	Bare *Link `json:"bare"`
	Peer Peer  `json:"peer"`
}

// Link is a veth between a pod and its node, both ends.
type Link struct {
	Host    string     `json:"host"`
	Pod     string     `json:"pod"`
	MTU     int        `json:"mtu"`
	Addr    netip.Addr `json:"addr"`
	Gateway netip.Addr `json:"gateway"`
	// Routes are the addresses that the pod reaches through it.
	Routes []netip.Addr `json:"routes"`
}

// Peer is a peer of the bare device.
type Peer struct {
	PublicKey string         `json:"publicKey"`
	Endpoint  netip.AddrPort `json:"endpoint"`
	// Pod is the address behind it.
	Pod netip.Addr `json:"pod"`
}

// Counters are taken at one moment.
type Counters struct {
	// Busy is the CPU time that all processors have spent.
	Busy time.Duration `json:"busy"`
	// Sent are the bytes that left through a link, by its name.
	Sent map[string]uint64 `json:"sent"`
	// DaemonCPU and DaemonMiB are the CPU time and memory of the node's veild; 0 where none runs.
	DaemonCPU time.Duration `json:"daemonCPU"`
	DaemonMiB float64       `json:"daemonMiB"`
}

// Programs are the BPF programs whose names begin with Prefix, watched for that long.
type Programs struct {
	Prefix string        `json:"prefix"`
	For    time.Duration `json:"for"`
}

// Ran counts how often programs ran, and the time that they took together.
type Ran struct {
	Runs uint64        `json:"runs"`
	Took time.Duration `json:"took"`
}

// Platform is the kind of a machine, as the machine reports it.
type Platform struct {
	// Name is one of pkg/bench's platforms.
	Name string `json:"name"`
	// Why is the evidence for the kind.
	Why    string `json:"why"`
	Kernel string `json:"kernel"`
	CPUs   int    `json:"cpus"`
	// Processor and Machine are names for people.
	Processor string `json:"processor"`
	Machine   string `json:"machine"`
	// Underlay is the link to the node's own address; UnderlayMTU is its MTU, bytes.
	Underlay    string `json:"underlay"`
	UnderlayMTU int    `json:"underlayMTU"`
	// Tunnels are the links of Kubeveil's tunnels; KernelTunnels whether all of them are the
	// kernel's WireGuard.
	Tunnels       []string `json:"tunnels"`
	KernelTunnels bool     `json:"kernelTunnels"`
}

// Ask is the argument of VerbPlatform.
type Ask struct {
	// NodeAddr is the node's own address.
	NodeAddr netip.Addr `json:"nodeAddr"`
}

// Watch lists what must not be seen on the link of VerbPlatform's Underlay.
type Watch struct {
	Link   string         `json:"link"`
	Ranges []netip.Prefix `json:"ranges"`
	Nodes  []netip.Addr   `json:"nodes"`
	Canary string         `json:"canary"`
}

// Judgement is the result of a Watch, in frames.
type Judgement struct {
	Frames    uint64   `json:"frames"`
	Plaintext uint64   `json:"plaintext"`
	Dropped   uint64   `json:"dropped"`
	Examples  []string `json:"examples"`
}
