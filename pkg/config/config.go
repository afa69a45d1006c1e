package config

import "net/netip"

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
	// MetricsAddress serves /metrics, /healthz and /readyz; empty serves none.
	MetricsAddress string `json:"metricsAddress,omitempty"`
	// LogLevel is debug, info, warn or error.
	LogLevel string `json:"logLevel"`
}

// Source says where the table comes from.
type Source struct {
	// Kind is "kubernetes" or "snapshot".
	Kind string `json:"kind"`
	// Kubeconfig is a kubeconfig file; empty uses the pod's service account.
	Kubeconfig string `json:"kubeconfig,omitempty"`
	// File is the snapshot read by kind "snapshot".
	File string `json:"file,omitempty"`
}

// Tunnel configures WireGuard.
type Tunnel struct {
	// Mode is "auto", "kernel" or "userspace".
	Mode string `json:"mode"`
	// Port is the UDP port on the underlay.
	Port int `json:"port"`
}

// CNI configures what runtimes see.
type CNI struct {
	// ConfDir is where the CNI configuration is written, last.
	ConfDir string `json:"confDir"`
	// Portmap and Bandwidth chain the reference plugins of these names.
	Portmap   bool `json:"portmap"`
	Bandwidth bool `json:"bandwidth"`
}
