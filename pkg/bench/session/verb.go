package session

import (
	"net/netip"
	"time"
)

// Verbs that veil-tools serves in a measured pod.
const (
	// VerbIperf runs iperf3. Its argument is an Iperf, its answer an IperfDone.
	VerbIperf = "iperf"
	// VerbRoundTrips measures round trips over connections. Its argument is a RoundTrips, its
	// answer a Latency for each address.
	VerbRoundTrips = "round-trips"
	// VerbSelf returns where the program runs. It has no argument; its answer is a Self.
	VerbSelf = "self"
	// VerbAwait waits for a connection that sends Await.Token. Its argument is an Await.
	VerbAwait = "await"
)

// Verbs that veil-tools serves in the privileged pod of a node.
const (
	// VerbPlatform returns the kind of machine. Its argument is an Ask, its answer a Platform.
	VerbPlatform = "platform"
	// VerbTunnel makes the bare WireGuard device. Its argument is a Tunnel, its answer the public
	// key (text).
	VerbTunnel = "tunnel"
	// VerbWire adds the other interfaces to a pod and their routes to the node. Its argument is a
	// Wire.
	VerbWire = "wire"
	// VerbUnwire removes what VerbTunnel and VerbWire made; it may be repeated.
	VerbUnwire = "unwire"
	// VerbCount reads counters. Its answer is a Counters.
	VerbCount = "count"
	// VerbPrograms counts the runs of BPF programs for a while. Its argument is a Programs, its
	// answer a Ran.
	VerbPrograms = "programs"
	// VerbWatch inspects the frames on the node's link until VerbJudge. Its argument is a Watch.
	// VerbJudge ends the watch; its answer is a Judgement.
	VerbWatch = "watch"
	VerbJudge = "judge"
)

// Ports of the server's pod.
const (
	IperfPort      = 5201
	RoundTripsPort = 5202
	AwaitPort      = 5203
)

// Links that VerbWire adds to a pod.
const (
	ClearLink = "clear0"
	BareLink  = "bare0"
)

// Links that VerbTunnel and VerbWire add to a node. Only the suite uses them.
const (
	HostClearLink = "kvbench-clear"
	HostBareLink  = "kvbench-bare"
	BareDevice    = "kvbench-wg"
)

// Iperf holds the command-line arguments of iperf3.
type Iperf struct {
	Args []string `json:"args"`
}

// IperfDone is the output of iperf3 and how it ended. An empty Failure means exit status 0.
type IperfDone struct {
	Stdout  []byte `json:"stdout"`
	Stderr  string `json:"stderr"`
	Failure string `json:"failure"`
}

// RoundTrips configures the measurement of round trips. There is one connection to each address of
// To. A turn has one request and response on each connection, in an order drawn for each turn, so
// that other work of the machine affects all addresses alike. The measurement ends after Count
// turns, but not before Least and not after Most.
type RoundTrips struct {
	To    []netip.AddrPort `json:"to"`
	Size  int              `json:"size"`
	Count int              `json:"count"`
	Least time.Duration    `json:"least"`
	Most  time.Duration    `json:"most"`
	// Fill is repeated as the content of messages; empty means zeros.
	Fill string `json:"fill"`
}

// Latency holds the number of round trips to one address, with the median and the 99th percentile
// of their times.
type Latency struct {
	Count int           `json:"count"`
	P50   time.Duration `json:"p50"`
	P99   time.Duration `json:"p99"`
}

// Self describes the network namespace in which a program runs.
type Self struct {
	// NetNS is the inode of the program's network namespace.
	NetNS uint64 `json:"netns"`
	// MTU is the MTU of eth0 in bytes, or 0 where there is no eth0.
	MTU int `json:"mtu"`
}

// Await identifies a connection by the token that it sends.
type Await struct {
	Token string `json:"token"`
}

// Tunnel describes how to make the bare device.
type Tunnel struct {
	Port int `json:"port"`
	MTU  int `json:"mtu"`
	// Like is the link whose queue length the device gets; "" means the default length.
	Like string `json:"like"`
	// Service is the address that the device's namespace translates to Endpoint.
	Service  netip.Addr `json:"service"`
	Endpoint netip.Addr `json:"endpoint"`
}

// Wire describes the links and routes that VerbWire adds to a node and a pod on it.
type Wire struct {
	// NetNS is the inode of the pod's network namespace.
	NetNS uint64 `json:"netns"`
	// Clear is the pod's link in clear. Other is the address of the other pod's link in clear; the
	// node routes it without a tunnel via Via, the other node.
	Clear Link       `json:"clear"`
	Other netip.Addr `json:"other"`
	Via   netip.Addr `json:"via"`
	// Bare is the pod's link to the bare device; nil means that there is no bare device. Peer is
	// the other node's bare device.
	Bare *Link `json:"bare"`
	Peer Peer  `json:"peer"`
}

// Link describes a veth pair between a pod and its node. Host and Pod are the names of its ends.
type Link struct {
	Host    string     `json:"host"`
	Pod     string     `json:"pod"`
	MTU     int        `json:"mtu"`
	Addr    netip.Addr `json:"addr"`
	Gateway netip.Addr `json:"gateway"`
	// Routes are the addresses that the pod reaches through the link.
	Routes []netip.Addr `json:"routes"`
}

// Peer is a peer of the bare device.
type Peer struct {
	PublicKey string         `json:"publicKey"`
	Endpoint  netip.AddrPort `json:"endpoint"`
	// Pod is the address of the pod behind the peer.
	Pod netip.Addr `json:"pod"`
}

// Counters holds counters of a node, read at one moment.
type Counters struct {
	// Busy is the CPU time that all processors have spent.
	Busy time.Duration `json:"busy"`
	// Sent holds the number of bytes sent through each link, keyed by its name.
	Sent map[string]uint64 `json:"sent"`
	// DaemonCPU and DaemonMiB are the CPU time and memory of the node's veild; 0 where none runs.
	DaemonCPU time.Duration `json:"daemonCPU"`
	DaemonMiB float64       `json:"daemonMiB"`
}

// Programs selects the BPF programs whose names begin with Prefix. For is the time of counting.
type Programs struct {
	Prefix string        `json:"prefix"`
	For    time.Duration `json:"for"`
}

// Ran holds the number of runs of BPF programs and the total time of these runs.
type Ran struct {
	Runs uint64        `json:"runs"`
	Took time.Duration `json:"took"`
}

// Platform is the kind of a machine, as the machine reports it.
type Platform struct {
	// Name is one of the platforms of pkg/bench.
	Name string `json:"name"`
	// Why is the evidence for Name.
	Why    string `json:"why"`
	Kernel string `json:"kernel"`
	CPUs   int    `json:"cpus"`
	// Processor and Machine are names of the models.
	Processor string `json:"processor"`
	Machine   string `json:"machine"`
	// Underlay is the link that has the node's own address. UnderlayMTU is its MTU in bytes.
	Underlay    string `json:"underlay"`
	UnderlayMTU int    `json:"underlayMTU"`
	// Tunnels are the links of Kubeveil's tunnels. KernelTunnels reports whether all of them are
	// WireGuard devices of the kernel.
	Tunnels       []string `json:"tunnels"`
	KernelTunnels bool     `json:"kernelTunnels"`
}

// Ask is the argument of VerbPlatform.
type Ask struct {
	// NodeAddr is the node's own address.
	NodeAddr netip.Addr `json:"nodeAddr"`
}

// Watch describes what must not appear on Link, which is Platform.Underlay: packets with addresses
// in Ranges, and the canary. Nodes are the addresses of the nodes themselves.
type Watch struct {
	Link   string         `json:"link"`
	Ranges []netip.Prefix `json:"ranges"`
	Nodes  []netip.Addr   `json:"nodes"`
	Canary string         `json:"canary"`
}

// Judgement is the result of a Watch, in frames. Dropped frames were not inspected.
type Judgement struct {
	Frames    uint64   `json:"frames"`
	Plaintext uint64   `json:"plaintext"`
	Dropped   uint64   `json:"dropped"`
	Examples  []string `json:"examples"`
}
