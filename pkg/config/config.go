package config

import (
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cluster"
)

// Config is the configuration of veild. The zero value is not valid. Load fills in defaults and
// checks the result.
type Config struct {
	// Node is this node's name in Kubernetes; by default the host name in lower case.
	Node string `json:"node"`
	// ClusterRanges contain every pod prefix that there may ever be. They are configuration, never
	// inferred from the nodes seen so far.
	ClusterRanges []netip.Prefix `json:"clusterRanges"`
	// ServiceRanges contain every service address that there may ever be.
	ServiceRanges []netip.Prefix `json:"serviceRanges"`
	// NodeRanges contain every address that a node may ever have. An empty list allows any. A
	// kubelet may write what it likes into the addresses of its own Node. Without a bound, a worker
	// can capture the traffic of pods to an outside address.
	NodeRanges []netip.Prefix `json:"nodeRanges,omitempty"`
	// Outside are the parts of NodeRanges with hosts that are not nodes. If it is not nil, even if
	// empty, the rest of NodeRanges is closed to pods, except for peers.
	Outside []netip.Prefix `json:"outside,omitzero"`
	// Sites are other clusters. Their ranges are closed: PodRanges as ClusterRanges, and NodeRanges
	// for pods. There are at most MaxSites.
	Sites []cluster.Site `json:"sites,omitempty"`
	// LinkLocalOutside are the IPv4 link-local addresses (RFC 3927) outside the node that pods
	// reach in clear. Link-local addresses of the node itself need no entry.
	LinkLocalOutside []netip.Prefix `json:"linkLocalOutside"`
	// KubeadmConfig is a file with kubeadm's ClusterConfiguration, or a
	// ConfigMap that holds one, from which ranges that are not set here are read. Optional.
	KubeadmConfig string `json:"kubeadmConfig,omitempty"`
	// Source selects the source of the table.
	Source Source `json:"source"`
	// KeyFile is the file of the private key.
	KeyFile string `json:"keyFile"`
	// SnapshotFile is the file of the last good table.
	SnapshotFile string `json:"snapshotFile"`
	// TrustDisk allows KeyFile and SnapshotFile outside of tmpfs.
	TrustDisk bool `json:"trustDisk,omitempty"`
	// Tunnel configures WireGuard.
	Tunnel Tunnel `json:"tunnel"`
	// MTU overrides the MTU of the underlay, bytes; 0 reads it from the interface.
	MTU int `json:"mtu,omitempty"`
	// Masquerade makes packets that leave the cluster carry the node's address.
	Masquerade bool `json:"masquerade"`
	// CNI describes the content and the folder of the CNI configuration.
	CNI CNI `json:"cni"`
	// ServiceProxy selects the program that translates services: ServiceProxyNone (another program,
	// such as kube-proxy) or ServiceProxyEBPF.
	ServiceProxy string `json:"serviceProxy"`
	// Policy is PolicyNone, or PolicyKubernetes to enforce NetworkPolicy.
	Policy string `json:"policy"`
	// PolicyOwnNode is OwnNodeJudge, or OwnNodeAllow: NetworkPolicies then never deny a pod's
	// connections to its own node.
	PolicyOwnNode string `json:"policyOwnNode"`
	// PodConnections bounds the tracked connections that one pod may have opened. 0 means no limit,
	// and -1 a tenth of nf_conntrack_max.
	PodConnections int `json:"podConnections"`
	// SiteConnections bounds the tracked connections that one site may have opened on this node. It
	// means the same as PodConnections.
	SiteConnections int `json:"siteConnections"`
	// Services configures ServiceProxyEBPF, and the way to API servers: see APIPath.
	Services Services `json:"services"`
	// MetricsAddress is the address and port of /metrics, /healthz and /readyz. "" turns them off.
	MetricsAddress string `json:"metricsAddress,omitempty"`
	// MetricsPeers adds series of each peer to /metrics.
	MetricsPeers bool `json:"metricsPeers,omitempty"`
	// LogLevel is debug, info, warn or error.
	LogLevel string `json:"logLevel"`
	// LogFormat is text or json.
	LogFormat string `json:"logFormat"`
}

// Source selects the source of the table.
type Source struct {
	// Kind is SourceKubernetes or SourceSnapshot.
	Kind string `json:"kind"`
	// Kubeconfig is a kubeconfig file; empty uses the pod's service account.
	Kubeconfig string `json:"kubeconfig,omitempty"`
	// File is the snapshot read by kind "snapshot".
	File string `json:"file,omitempty"`
}

// Tunnel configures WireGuard.
type Tunnel struct {
	// Mode is ModeAuto, ModeKernel or ModeUserspace.
	Mode string `json:"mode"`
	// Port is the UDP port on the underlay.
	Port int `json:"port"`
	// Keepalive is the pause between packets to each peer that keep firewalls and NAT
	// between nodes open, seconds; 0 sends none.
	Keepalive int `json:"keepalive,omitempty"`
	// Roaming accepts tunnel datagrams from any address, for nodes behind NAT. Otherwise they are
	// accepted only from addresses of believed nodes.
	Roaming bool `json:"roaming,omitempty"`
}

// CNI configures the CNI configuration that container runtimes read.
type CNI struct {
	// ConfDir is the folder of the CNI configuration. veild writes it once the data path is in
	// place.
	ConfDir string `json:"confDir"`
	// Portmap and Bandwidth chain the reference plugins of these names.
	Portmap   bool `json:"portmap"`
	Bandwidth bool `json:"bandwidth"`
}

// Services configures the table of services.
type Services struct {
	// Cgroup is the root of the cgroup v2 tree whose sockets are translated. If it is empty, veild
	// finds the root.
	Cgroup string `json:"cgroup,omitempty"`
	// APIServers are addresses of API servers. veild uses them before, and in addition to, the
	// endpoints that the API lists. With ServiceProxyNone, APIServers and APIFrontends turn APIPath
	// on.
	APIServers []netip.AddrPort `json:"apiServers,omitempty"`
	// APIFrontends are addresses in the kubeconfigs of the node's own programs. They lead to the
	// API servers whose certificates name them. There are at most MaxAPIFrontends.
	APIFrontends []netip.AddrPort `json:"apiFrontends,omitempty"`
	// HostRouting selects how packets reach the pods of the node: HostRoutingKernel,
	// HostRoutingEBPF, which bypasses netfilter, or HostRoutingAuto, which does so until a chain of
	// another program judges packets.
	HostRouting string `json:"hostRouting"`
	// HealthAddress is the address and port that answers health checks of load balancers. "" turns
	// it off.
	HealthAddress string `json:"healthAddress"`
	// NodePortAddresses are ranges. NodePorts are served at this node's addresses in them. If the
	// list is empty, they are served at the primary addresses: those of the Node object that are on
	// the link to the other nodes.
	NodePortAddresses []netip.Prefix `json:"nodePortAddresses,omitempty"`
	// Limits are the sizes of the table.
	Limits ServiceLimits `json:"limits"`
}

// ServiceLimits are the sizes of the service table, in entries. 0 means the default of pkg/service,
// and for flows a size that follows from the node's memory.
type ServiceLimits struct {
	// Frontends bounds the addresses and ports of services.
	Frontends int `json:"frontends,omitempty"`
	// BackendSlots is a power of two, about four times the number of backends.
	BackendSlots int `json:"backendSlots,omitempty"`
	// SourceRanges bounds the ranges of loadBalancerSourceRanges.
	SourceRanges int `json:"sourceRanges,omitempty"`
	// TCPFlows bounds the entries of established connections that are translated at links: two for
	// each, four with SNAT. OpeningFlows bounds the entries of connections that are being opened,
	// UDPFlows the entries of UDP.
	TCPFlows     int `json:"tcpFlows,omitempty"`
	OpeningFlows int `json:"openingFlows,omitempty"`
	UDPFlows     int `json:"udpFlows,omitempty"`
	// FlowQuotas bounds the flows of clients in the cluster that are counted against their quota.
	FlowQuotas int `json:"flowQuotas,omitempty"`
}

// MaxAPIFrontends bounds the addresses in Services.APIFrontends.
const MaxAPIFrontends = 8

// MaxSites bounds Config.Sites.
const MaxSites = cluster.MaxSites

// Values of Config.ServiceProxy.
const (
	ServiceProxyNone = "none"
	ServiceProxyEBPF = "ebpf"
)

// Values of Config.Policy.
const (
	PolicyNone       = "none"
	PolicyKubernetes = "kubernetes"
)

// Values of Config.PolicyOwnNode: what NetworkPolicies do with a pod's connections to its own node.
const (
	OwnNodeJudge = "judge"
	OwnNodeAllow = "allow"
)

// Values of Services.HostRouting.
const (
	HostRoutingKernel = "kernel"
	HostRoutingEBPF   = "ebpf"
	HostRoutingAuto   = "auto"
)

// FastPath reports whether packets of pods may bypass netfilter.
func (s Services) FastPath() bool {
	return s.HostRouting == HostRoutingEBPF || s.HostRouting == HostRoutingAuto
}

// Kinds of source.
const (
	SourceKubernetes = "kubernetes"
	SourceSnapshot   = "snapshot"
)

// Modes of the tunnel. ModeKernel is the kernel's WireGuard, ModeUserspace the WireGuard of
// veil-wg. ModeAuto is the kernel's where the kernel has WireGuard, otherwise veil-wg's.
const (
	ModeAuto      = "auto"
	ModeKernel    = "kernel"
	ModeUserspace = "userspace"
)

// Default returns a configuration in which only the ranges are missing.
func Default() Config {
	node, err := os.Hostname()
	if err != nil {
		node = "" // Validate reports it.
	}
	return Config{
		Node:             strings.ToLower(node),
		LinkLocalOutside: slices.Clone(cloudAddresses),
		Source:           Source{Kind: SourceKubernetes},
		KeyFile:          abi.KeyFile,
		SnapshotFile:     abi.SnapshotFile,
		Tunnel:           Tunnel{Mode: ModeAuto, Port: abi.TunnelPort},
		Masquerade:       true,
		CNI:              CNI{ConfDir: abi.CNIConfDir, Portmap: true, Bandwidth: true},
		ServiceProxy:     ServiceProxyNone,
		Policy:           PolicyNone,
		PolicyOwnNode:    OwnNodeJudge,
		PodConnections:   -1,
		SiteConnections:  -1,
		Services: Services{HostRouting: HostRoutingKernel,
			HealthAddress: abi.ServiceHealthAddress},
		MetricsAddress: abi.MetricsAddress,
		LogLevel:       "info",
		LogFormat:      "text",
	}
}

// flags names each flag, the key it overrides and its usage.
var flags = []struct{ name, path, usage string }{
	{"node", "node", "`name` of this node in Kubernetes (default: the host name)"},
	{"cluster-ranges", "clusterRanges", "comma-separated `ranges` of all pods"},
	{"service-ranges", "serviceRanges", "comma-separated `ranges` of all services"},
	{"node-ranges", "nodeRanges", "comma-separated `ranges` of all node addresses (default: any)"},
	{"outside", "outside", "comma-separated `ranges` inside node-ranges whose hosts are not " +
		"nodes; if given, even empty, the rest is closed to pods"},
	{"link-local-outside", "linkLocalOutside",
		"comma-separated `ranges` in 169.254.0.0/16 that pods reach outside the node, in clear; " +
			"if empty, none (default: clouds' metadata, DNS and time)"},
	{"kubeadm-config", "kubeadmConfig",
		"`file` with kubeadm's ClusterConfiguration, for ranges that are not set"},
	{"source", "source.kind", "source of the table of nodes: `kind` kubernetes or snapshot"},
	{"kubeconfig", "source.kubeconfig", "kubeconfig `file` (default: the service account)"},
	{"source-file", "source.file", "snapshot `file` for the source snapshot"},
	{"key-file", "keyFile", "`file` of the private key, on tmpfs"},
	{"snapshot-file", "snapshotFile", "`file` of the last good table, on tmpfs"},
	{"trust-disk", "trustDisk", "allow key and snapshot on a disk"},
	{"tunnel-mode", "tunnel.mode", "`mode` of WireGuard: auto, kernel or userspace"},
	{"tunnel-port", "tunnel.port", "UDP `port` of WireGuard"},
	{"tunnel-keepalive", "tunnel.keepalive",
		"`seconds` between packets to each peer that keep firewalls open (default: none)"},
	{"tunnel-roaming", "tunnel.roaming",
		"accept tunnel datagrams from any address, for nodes behind NAT whose outer address " +
			"is not in their Node objects"},
	{"mtu", "mtu", "MTU of the underlay in `bytes` (default: the MTU of the interface)"},
	{"masquerade", "masquerade", "masquerade traffic that leaves the cluster"},
	{"cni-conf-dir", "cni.confDir", "`directory` of the CNI configuration"},
	{"portmap", "cni.portmap", "chain the portmap plugin"},
	{"bandwidth", "cni.bandwidth", "chain the bandwidth plugin"},
	{"service-proxy", "serviceProxy",
		"proxy that translates services: `kind` none (another program) or ebpf"},
	{"policy", "policy", "which network policies are enforced: `kind` none or kubernetes"},
	{"pod-connections", "podConnections",
		"`number` of tracked connections that one pod may open; 0: no limit, -1: a tenth of " +
			"nf_conntrack_max"},
	{"site-connections", "siteConnections",
		"`number` of tracked connections that one site may open; 0: no limit, -1: a tenth of " +
			"nf_conntrack_max"},
	{"policy-own-node", "policyOwnNode",
		"how network policies treat a pod's connections to its own node: `kind` judge or allow"},
	{"service-cgroup", "services.cgroup",
		"root of the cgroup v2 `tree` whose sockets are translated (default: the mounted tree)"},
	{"api-servers", "services.apiServers",
		"comma-separated `addresses` with ports of API servers, for the table of services"},
	{"api-frontends", "services.apiFrontends",
		"comma-separated `addresses` with ports in kubeconfigs of the node's own programs, to " +
			"translate to all API servers whose certificates name them"},
	{"host-routing", "services.hostRouting",
		"path of packets to pods of the node: `kind` kernel; ebpf, which bypasses netfilter; or " +
			"auto, which does so until a chain of another program judges packets"},
	{"service-health-address", "services.healthAddress",
		"`address` of the health check for load balancers; empty: none"},
	{"node-port-addresses", "services.nodePortAddresses",
		"comma-separated `ranges` of this node's addresses that serve NodePorts " +
			"(default: the primary addresses)"},
	{"service-frontends", "services.limits.frontends",
		"maximum `number` of addresses of services"},
	{"service-backend-slots", "services.limits.backendSlots",
		"`number` of slots for backends: a power of two, at least four times the backends"},
	{"service-source-ranges", "services.limits.sourceRanges",
		"maximum `number` of ranges in loadBalancerSourceRanges"},
	{"service-tcp-flows", "services.limits.tcpFlows",
		"`number` of entries for established connections at links: two for each, four with " +
			"SNAT (default: by the node's memory)"},
	{"service-opening-flows", "services.limits.openingFlows",
		"`number` of entries for connections that are being opened (default: by the node's " +
			"memory)"},
	{"service-udp-flows", "services.limits.udpFlows",
		"`number` of entries for UDP flows at links (default: by the node's memory)"},
	{"service-flow-quotas", "services.limits.flowQuotas",
		"maximum `number` of flows that count against quotas (default: by the node's memory)"},
	{"metrics-address", "metricsAddress",
		"`address` of /metrics, /healthz and /readyz; empty: none"},
	{"metrics-peers", "metricsPeers", "add series for each peer to /metrics"},
	{"log-level", "logLevel", "`level` debug, info, warn or error"},
	{"log-format", "logFormat", "`format` text or json"},
}

// Rules returns the rules by which cluster.Resolve judges claims. gateways are the next
// hops of the underlay's default routes. The gateways inside pods are link-local, and no
// node has a link-local address.
func (c Config) Rules(gateways []netip.Addr) cluster.Rules {
	return cluster.Rules{
		Self:          c.Node,
		ClusterRanges: c.ClusterRanges,
		ServiceRanges: c.ServiceRanges,
		NodeRanges:    c.NodeRanges,
		Outside:       c.Outside,
		Sites:         c.Sites,
		Gateways:      gateways,
	}
}

// APIPath reports whether veild redirects connections to the API server, at connect(2), to API
// servers that answer. It does so with ServiceProxyEBPF. Beside another service proxy, it does so
// if Services.APIServers or Services.APIFrontends is set.
func (c Config) APIPath() bool {
	return c.ServiceProxy == ServiceProxyEBPF || len(c.Services.APIServers) > 0 ||
		len(c.Services.APIFrontends) > 0
}

// Families returns the families of the cluster ranges, which are the families of pods.
func (c Config) Families() cluster.Families {
	return cluster.Node{PodPrefixes: c.ClusterRanges}.PodFamilies()
}
