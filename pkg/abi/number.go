package abi

import "github.com/kubeveil/kubeveil/pkg/cluster"

// Marks on packets (skb->mark). Each mark is one bit and is set and tested with itself as the mask,
// so that the bits of kube-proxy (0x4000, 0x8000), Cilium (0x0f00) and others do not matter.
const (
	// PodMark is set on every packet that enters the node from a pod's veth.
	PodMark uint32 = 0x0010_0000
	// TunnelMark is set on the UDP sockets of tunnels, and thereby on outer packets.
	TunnelMark uint32 = 0x0020_0000
	// ServiceMark is set on packets of a flow to a service whose addresses are translated at links,
	// both ways.
	ServiceMark uint32 = 0x0040_0000
	// PolicyMark is set by NFTPolicyTable on packets that it has judged. NFTStampTable clears it
	// before that table and after it.
	PolicyMark uint32 = 0x0080_0000
	// ProbeMark is set on the sockets with which veild probes API servers. Their connections are
	// not redirected by services.apiFrontends, which may contain the addresses of the servers.
	ProbeMark uint32 = 0x0100_0000
)

// Link groups (IFLA_GROUP), by which rules match our devices without their names.
const (
	// PodGroup is the group of the host end of every pod's veth.
	PodGroup uint32 = 0x7670
	// TunnelGroup is the group of every tunnel device.
	TunnelGroup uint32 = 0x7674
)

// Policy routing. The kernel evaluates rules of a lower preference first; its
// local table has 0, main has 32766.
const (
	// TablePod is the routing table for packets that come from pods.
	TablePod = 30309
	// RulePrefTunnel makes outer packets use the table main, except its routes into tunnels.
	RulePrefTunnel = 90
	// RulePrefTunnelDeny makes the destination of outer packets without another route unreachable.
	RulePrefTunnelDeny = 91
	// RulePrefPod sends packets with PodMark to TablePod.
	RulePrefPod = 100
	// MetricRange is the metric of the unreachable routes for the ranges. It is larger than the
	// metric of any route that carries traffic.
	MetricRange = 0x7665_0000
	// MetricTunnel is the metric of routes into a tunnel.
	MetricTunnel = 1024
)

// Route protocols (rtm_protocol) identify the owner of a route.
const (
	// RouteProtoNode is on the routes that veild owns.
	RouteProtoNode = 118
	// RouteProtoPod is on the host routes to pods, which the plugin owns.
	RouteProtoPod = 119
)

// Tunnel.
const (
	// TunnelDevicePrefix is the prefix of the name of every tunnel device; a number follows.
	TunnelDevicePrefix = "veil"
	// TunnelPort is the default UDP port of WireGuard on the underlay.
	TunnelPort = 51820
	// ProbePort is the UDP port, inside the tunnel only, of the path MTU probe.
	ProbePort = 51821
	// TunnelQueueLen is the transmit queue of a TUN, packets. The kernel's
	// default of 500 drops bursts of UDP.
	TunnelQueueLen = 10000
	// TunnelAddress4 is an IPv4 address that every tunnel device has. Without an IPv4 address on
	// the device, the kernel treats a loose rp_filter as strict. The address has scope host, so
	// that the kernel never selects it as a source.
	TunnelAddress4 = "169.254.1.2"
)

// MetricsAddress is the default address of /metrics, /healthz and /readyz.
const MetricsAddress = "127.0.0.1:9631"

// ServiceHealthAddress is the default address for health checks of load balancers, the same as
// kube-proxy's --healthz-bind-address.
const ServiceHealthAddress = ":10256"

// Pod addressing. The gateways are link-local, the same on every node, and are
// reached through permanent neighbours, never by ARP or ND.
const (
	// PodGateway4 is the next hop of a pod's IPv4 default route.
	PodGateway4 = "169.254.1.1"
	// PodGateway6 is the next hop of a pod's IPv6 default route.
	PodGateway6 = "fe80::1"
	// PodLinkPrefix is the prefix of the name of the host end of a pod's veth; eleven
	// hexadecimal digits of a hash follow.
	PodLinkPrefix = "vpod"
)

// MinPodMTU6 is the smallest MTU a link with IPv6 may have (RFC 8200 section 5).
const MinPodMTU6 = cluster.MinMTU6

// nftables tables (family inet).
const (
	// NFTGuardTable holds the interface-independent drops.
	NFTGuardTable = "kubeveil_guard"
	// NFTPrefix is the prefix of the names of all our tables. No other program uses it.
	NFTPrefix = "kubeveil"
	// NFTNatTable masquerades packets that leave the cluster.
	NFTNatTable = "kubeveil_nat"
	// NFTPodTable marks packets from pods, and drops packets whose source is not one of the pod's
	// addresses.
	NFTPodTable = "kubeveil_pods"
	// NFTOuterTable keeps outer packets whole.
	NFTOuterTable = "kubeveil_outer"
	// NFTLimitTable drops new connections of pods and sites with too many tracked connections.
	// Without sites, it exists only while a pod has too many.
	NFTLimitTable = "kubeveil_limit"
	// NFTProbeTable counts the packets of a probe (package passage). It exists only during a probe.
	NFTProbeTable = "kubeveil_probe"
	// NFTFlowTableTCP and NFTFlowTableUDP let packets of flows between pods and tunnels take the
	// fast path of a flowtable.
	NFTFlowTableTCP = "kubeveil_flows_tcp"
	NFTFlowTableUDP = "kubeveil_flows_udp"
)

// Groups of nflog to which rules log samples of dropped packets.
const (
	// NFLogPolicy is the group of the tables of policies, NFLogGuard the group of all others.
	NFLogPolicy = 118
	NFLogGuard  = 119
)

// Parts of NFTPodTable, which veild makes. The plugin checks the chain and fills the sets.
const (
	// NFTPodChain is the only chain of the table, at prerouting.
	NFTPodChain = "prerouting"
	// NFTPodSet4 and NFTPodSet6 hold the pods' addresses. An element is ifname . address: the name
	// of the pod's host link in 16 bytes, padded with zeroes, and the address in 4 or 16 bytes in
	// network order.
	NFTPodSet4 = "pods4"
	NFTPodSet6 = "pods6"
)

// Paths. RunDir is on tmpfs, because the disk is not trusted and because a reboot must clear
// RunDir.
const (
	// RunDir holds all files that last until the next boot.
	RunDir = "/run/kubeveil"
	// ReadyFile is the marker that veild writes after its first apply.
	ReadyFile = RunDir + "/ready"
	// PodDir holds a record for each attached pod interface.
	PodDir = RunDir + "/pods"
	// IPAMDir is the data directory of host-local.
	IPAMDir = RunDir + "/ipam"
	// WorkerDir is the folder in which veild requests devices from veil-wg.
	WorkerDir = RunDir + "/wg"
	// WireGuardSocketDir is the folder in which WireGuard's tools find the configuration sockets of
	// userspace devices.
	WireGuardSocketDir = "/var/run/wireguard"
	// KeyFile is the default place of the node's private key.
	KeyFile = RunDir + "/key"
	// SnapshotFile is the default place of the last good table.
	SnapshotFile = RunDir + "/snapshot.json"
	// AdminSocket is the socket of veild to which veilctl connects.
	AdminSocket = RunDir + "/veild.sock"
	// CNIConfDir is the default place of the CNI configuration.
	CNIConfDir = "/etc/cni/net.d"
	// CNIBinDir is the folder in which runtimes find CNI plugins.
	CNIBinDir = "/opt/cni/bin"
	// HostSysctlNet is the path at which the manifests mount /proc/sys/net of the node, writable,
	// because /proc/sys is read-only in a container that is not privileged.
	HostSysctlNet = "/host/proc/sys/net"
	// HostCgroup is the path at which the manifests mount the node's cgroup v2 tree, because
	// /sys/fs/cgroup in a container has only the container's own tree.
	HostCgroup = "/host/sys/fs/cgroup"
	// BPFDir holds the pinned programs and maps.
	BPFDir = "/sys/fs/bpf/kubeveil"
	// ConflistName is the file name of the CNI configuration.
	ConflistName = "05-kubeveil.conflist"
	// NetworkName is the name of the network in the CNI configuration.
	NetworkName = "kubeveil"
)

// Pinned BPF objects below BPFDir, by name.
const (
	// PinGuardIngress and PinGuardEgress are the guard's programs at tc.
	PinGuardIngress = "guard_ingress"
	PinGuardEgress  = "guard_egress"
	// PinGuardIngressL3 and PinGuardEgressL3 are the programs for links without Ethernet headers.
	PinGuardIngressL3 = "guard_ingress_l3"
	PinGuardEgressL3  = "guard_egress_l3"
	// PinDrops counts drops by reason.
	PinDrops = "drops"
	// PinSamples is the ring buffer with samples of dropped packets. PinLimits holds the limit of
	// samples of each reason, and PinShares the share of each link.
	PinSamples = "drop_samples"
	PinLimits  = "drop_limits"
	PinShares  = "drop_shares"
	// PinRanges is the trie of cluster ranges, PinNodes the set of node addresses, and PinVIPs the
	// set of addresses of services outside the ranges.
	PinRanges = "ranges"
	PinNodes  = "nodes"
	PinVIPs   = "vips"
	// PinTranslate is the array of programs that translate addresses at egress. The guard calls
	// them before it judges the packet.
	PinTranslate = "egress_translate"
	// PinLinks is the set of the indices of links that have the guard's programs.
	PinLinks = "guarded_links"
	// PinWork is the map in which the guard's programs store the parsed headers of one packet.
	PinWork = "guard_work"
)

// Priority and handle of our programs on a kernel without tcx. There, each program is a
// direct-action bpf filter of the clsact qdisc, for all protocols, with the name of its pin.
// Filters of priority 1 run first, the newest of them before the others.
const (
	TCPriority = 1
	TCHandle   = 0x7670
)
