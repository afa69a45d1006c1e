package config

import (
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cluster"
)

// Config is the configuration of veild. The zero value is not valid: Load
// fills in defaults and checks the whole.
type Config struct {
	// Node is this node's name in Kubernetes; by default the host name in lower case.
	Node string `json:"node"`
	// ClusterRanges hold every pod prefix there may ever be. They are configuration, never
	// inferred from the nodes seen so far.
	ClusterRanges []netip.Prefix `json:"clusterRanges"`
	// ServiceRanges hold every service address there may ever be.
	ServiceRanges []netip.Prefix `json:"serviceRanges"`
	// NodeRanges hold every address a node may ever have; empty allows any. A
	// kubelet may write what it likes into the addresses of its own Node: without a
	// bound, a worker can draw what pods send to an outside address to itself.
	NodeRanges []netip.Prefix `json:"nodeRanges,omitempty"`
	// Outside are the parts of NodeRanges where hosts are that are no nodes. When it is not
	// nil, be it empty, the rest of NodeRanges is closed to pods, but for peers.
	Outside []netip.Prefix `json:"outside,omitzero"`
	// LinkLocalOutside are the IPv4 link-local addresses (RFC 3927) outside the node that pods
	// reach in clear. Link-local addresses of the node itself need no entry.
	LinkLocalOutside []netip.Prefix `json:"linkLocalOutside"`
	// KubeadmConfig is a file with kubeadm's ClusterConfiguration, or a
	// ConfigMap that holds one, from which ranges that are not set here are read. Optional.
	KubeadmConfig string `json:"kubeadmConfig,omitempty"`
	// Source says where the table comes from.
	Source Source `json:"source"`
	// KeyFile is where the private key is kept.
	KeyFile string `json:"keyFile"`
	// SnapshotFile is where the last good table is kept.
	SnapshotFile string `json:"snapshotFile"`
	// TrustDisk allows KeyFile and SnapshotFile to be elsewhere than on tmpfs.
	TrustDisk bool `json:"trustDisk,omitempty"`
	// Tunnel configures WireGuard.
	Tunnel Tunnel `json:"tunnel"`
	// MTU overrides the MTU of the underlay, bytes; 0 reads it from the interface.
	MTU int `json:"mtu,omitempty"`
	// Masquerade makes what leaves the cluster carry the node's address.
	Masquerade bool `json:"masquerade"`
	// CNI says what the CNI configuration holds and where it goes.
	CNI CNI `json:"cni"`
	// ServiceProxy is who translates services: ServiceProxyNone (another program, such as
	// kube-proxy) or ServiceProxyEBPF.
	ServiceProxy string `json:"serviceProxy"`
	// Policy is PolicyNone, or PolicyKubernetes to enforce NetworkPolicy.
	Policy string `json:"policy"`
	// PolicyOwnNode is OwnNodeJudge, or OwnNodeAllow: NetworkPolicies then never deny a pod's
	// connections to its own node.
	PolicyOwnNode string `json:"policyOwnNode"`
	// PodConnections is how many tracked connections one pod may have opened; 0 means no limit, and
	// -1 a tenth of nf_conntrack_max.
	PodConnections int `json:"podConnections"`
	// Services configures ServiceProxyEBPF, and the way to API servers: see APIPath.
	Services Services `json:"services"`
	// MetricsAddress serves /metrics, /healthz and /readyz; empty serves none.
	MetricsAddress string `json:"metricsAddress,omitempty"`
	// MetricsPeers adds series of each peer to /metrics.
	MetricsPeers bool `json:"metricsPeers,omitempty"`
	// LogLevel is debug, info, warn or error.
	LogLevel string `json:"logLevel"`
}

// Source says where the table comes from.
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
	// Roaming takes tunnel datagrams from any address, for nodes behind NAT; otherwise they are
	// taken from addresses of believed nodes only.
	Roaming bool `json:"roaming,omitempty"`
}

// CNI configures what runtimes see.
type CNI struct {
	// ConfDir is where the CNI configuration is written, last.
	ConfDir string `json:"confDir"`
	// Portmap and Bandwidth chain the reference plugins of these names.
	Portmap   bool `json:"portmap"`
	Bandwidth bool `json:"bandwidth"`
}

// Services configures the table of services.
type Services struct {
	// Cgroup is the root of the cgroup v2 tree whose sockets are translated; empty finds it.
	Cgroup string `json:"cgroup,omitempty"`
	// APIServers are addresses of API servers that are known whatever the lists say, and before
	// there are any. With ServiceProxyNone they and APIFrontends turn APIPath on.
	APIServers []netip.AddrPort `json:"apiServers,omitempty"`
	// APIFrontends are addresses in the kubeconfigs of the node's own programs. They lead to the
	// API servers whose certificates name them. At most MaxAPIFrontends.
	APIFrontends []netip.AddrPort `json:"apiFrontends,omitempty"`
	// HostRouting is who brings packets to pods of the node: HostRoutingKernel, or HostRoutingEBPF,
	// past netfilter.
	HostRouting string `json:"hostRouting"`
	// HealthAddress is where balancers ask whether this node serves; empty is nowhere.
	HealthAddress string `json:"healthAddress"`
	// NodePortAddresses are ranges of this node's addresses that serve NodePorts. Empty serves the
	// primary addresses: those of the Node object, on the link to the other nodes.
	NodePortAddresses []netip.Prefix `json:"nodePortAddresses,omitempty"`
	// Limits are the sizes of the table.
	Limits ServiceLimits `json:"limits"`
}

// ServiceLimits are the sizes of the service table, in entries; 0 is the default of pkg/service.
type ServiceLimits struct {
	// Frontends is how many addresses and ports of services there are.
	Frontends int `json:"frontends,omitempty"`
	// BackendSlots is a power of two, about four times the number of backends.
	BackendSlots int `json:"backendSlots,omitempty"`
	// Members is how many backends of UDP and of services with session affinity there are.
	Members int `json:"members,omitempty"`
	// SourceRanges is how many ranges of loadBalancerSourceRanges there are.
	SourceRanges int `json:"sourceRanges,omitempty"`
}

// MaxAPIFrontends is how many addresses Services.APIFrontends may have.
const MaxAPIFrontends = 8

// Who translates services.
const (
	ServiceProxyNone = "none"
	ServiceProxyEBPF = "ebpf"
)

// Which policies are enforced.
const (
	PolicyNone       = "none"
	PolicyKubernetes = "kubernetes"
)

// What NetworkPolicies do with a pod's connections to its own node.
const (
	OwnNodeJudge = "judge"
	OwnNodeAllow = "allow"
)

// Who brings packets to pods of the node.
const (
	HostRoutingKernel = "kernel"
	HostRoutingEBPF   = "ebpf"
)

// Kinds of source.
const (
	SourceKubernetes = "kubernetes"
	SourceSnapshot   = "snapshot"
)

// Modes of the tunnel: by trying, the kernel's WireGuard, or veil-wg's.
const (
	ModeAuto      = "auto"
	ModeKernel    = "kernel"
	ModeUserspace = "userspace"
)

// Default returns a configuration in which only the ranges are missing.
func Default() Config {
	node, err := os.Hostname()
	if err != nil {
		node = "" // Validate asks for it.
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
		Services: Services{HostRouting: HostRoutingKernel,
			HealthAddress: abi.ServiceHealthAddress},
		MetricsAddress: abi.MetricsAddress,
		LogLevel:       "info",
	}
}

// flags names each flag, the key it overrides and its usage.
var flags = []struct{ name, path, usage string }{
	{"node", "node", "`name` of this node in Kubernetes (default: the host name)"},
	{"cluster-ranges", "clusterRanges", "comma-separated `ranges` of all pods"},
	{"service-ranges", "serviceRanges", "comma-separated `ranges` of all services"},
	{"node-ranges", "nodeRanges", "comma-separated `ranges` of all node addresses (default: any)"},
	{"outside", "outside", "comma-separated `ranges` inside node-ranges whose hosts are no nodes;\n" +
		"if given, even empty, the rest is closed to pods"},
	{"link-local-outside", "linkLocalOutside",
		"comma-separated `ranges` in 169.254.0.0/16 that pods reach outside the node, in clear;\n" +
			"if empty, none (default: clouds' metadata, DNS and time)"},
	{"kubeadm-config", "kubeadmConfig",
		"`file` with kubeadm's ClusterConfiguration, for ranges that are not set"},
	{"source", "source.kind", "where the table comes from: `kind` kubernetes or snapshot"},
	{"kubeconfig", "source.kubeconfig", "kubeconfig `file` (default: the service account)"},
	{"source-file", "source.file", "snapshot `file` for the source snapshot"},
	{"key-file", "keyFile", "`file` of the private key, on tmpfs"},
	{"snapshot-file", "snapshotFile", "`file` of the last good table, on tmpfs"},
	{"trust-disk", "trustDisk", "allow key and snapshot on a disk"},
	{"tunnel-mode", "tunnel.mode", "WireGuard by `mode` auto, kernel or userspace"},
	{"tunnel-port", "tunnel.port", "UDP `port` of WireGuard"},
	{"tunnel-keepalive", "tunnel.keepalive",
		"`seconds` between packets to each peer that keep firewalls open (default: none)"},
	{"tunnel-roaming", "tunnel.roaming",
		"take tunnel datagrams from any address: for nodes behind NAT\n" +
			"that the Node objects do not show"},
	{"mtu", "mtu", "MTU of the underlay, `bytes` (default: the interface's)"},
	{"masquerade", "masquerade", "masquerade what leaves the cluster"},
	{"cni-conf-dir", "cni.confDir", "`directory` of the CNI configuration"},
	{"portmap", "cni.portmap", "chain the portmap plugin"},
	{"bandwidth", "cni.bandwidth", "chain the bandwidth plugin"},
	{"service-proxy", "serviceProxy",
		"who translates services: `kind` none (another program) or ebpf"},
	{"policy", "policy", "which network policies are enforced: `kind` none or kubernetes"},
	{"pod-connections", "podConnections",
		"`number` of tracked connections that one pod may open; 0 is no limit, -1 a tenth of the table"},
	{"policy-own-node", "policyOwnNode",
		"what network policies do with a pod's connections to its own node: `kind` judge or allow"},
	{"service-cgroup", "services.cgroup",
		"root of the cgroup v2 `tree` whose sockets are translated (default: found)"},
	{"api-servers", "services.apiServers",
		"comma-separated `addresses` with ports of API servers, for the table of services"},
	{"api-frontends", "services.apiFrontends",
		"comma-separated `addresses` with ports in kubeconfigs of the node's own programs,\n" +
			"which then lead to all API servers whose certificates name them"},
	{"host-routing", "services.hostRouting",
		"who brings packets to pods of the node: `kind` kernel, or ebpf, past netfilter"},
	{"service-health-address", "services.healthAddress",
		"`address` where balancers ask whether this node serves; empty is nowhere"},
	{"node-port-addresses", "services.nodePortAddresses",
		"comma-separated `ranges` of this node's addresses that serve NodePorts\n" +
			"(default: the primary ones)"},
	{"service-frontends", "services.limits.frontends",
		"`number` of addresses of services there is room for"},
	{"service-backend-slots", "services.limits.backendSlots",
		"`number` of backends there is room for, four times as many as there are, a power of two"},
	{"service-members", "services.limits.members", "`number` of backends that can be remembered"},
	{"service-source-ranges", "services.limits.sourceRanges",
		"`number` of ranges of loadBalancerSourceRanges there is room for"},
	{"metrics-address", "metricsAddress",
		"`address` of /metrics, /healthz and /readyz; empty serves none"},
	{"metrics-peers", "metricsPeers", "add series of each peer to /metrics"},
	{"log-level", "logLevel", "`level` debug, info, warn or error"},
}

// Rules returns what cluster.Resolve judges claims by; gateways are the next hops
// of the underlay's default routes. The gateways inside pods are link-local, which no
// node's address is.
func (c Config) Rules(gateways []netip.Addr) cluster.Rules {
	return cluster.Rules{
		Self:          c.Node,
		ClusterRanges: c.ClusterRanges,
		ServiceRanges: c.ServiceRanges,
		NodeRanges:    c.NodeRanges,
		Outside:       c.Outside,
		Gateways:      gateways,
	}
}

// APIPath reports whether veild leads clients to API servers that answer, at connect. It does with
// ServiceProxyEBPF; beside another proxy it does if API servers, or addresses that lead to them, are
// named.
func (c Config) APIPath() bool {
	return c.ServiceProxy == ServiceProxyEBPF || len(c.Services.APIServers) > 0 ||
		len(c.Services.APIFrontends) > 0
}

// Families are the families of the cluster ranges, so of pods.
func (c Config) Families() cluster.Families {
	return cluster.Node{PodPrefixes: c.ClusterRanges}.PodFamilies()
}
