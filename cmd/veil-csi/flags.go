package main

import (
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	"github.com/kubeveil/kubeveil/csi/driver"
	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/internal/commandline"
)

// Default paths.
const (
	kubeletDir = "/var/lib/kubelet"
	dataDir    = "/var/lib/kubeveil/csi"
	runDir     = "/run/kubeveil/csi"
	kmsSocket  = keyring.KMSSocket
)

// options are the values of the flags.
type options struct {
	node, cluster, store, kubeconfig      string
	endpoint, registration, run           string
	files, disks, claims                  string
	sparse                                bool
	reserve, checkMemory, programsMemory  int
	kmsSocket, keyFile, previousKeyFile   string
	metrics, logLevel, logFormat          string
	latencyTuning                         string
	privateMounts                         bool
	rewrapEvery, trimEvery, requestsEvery time.Duration
	host
}

// flags returns a flag set whose flags set the fields of o.
func (o *options) flags() *pflag.FlagSet {
	fs := commandline.New("veil-csi")
	fs.StringVar(&o.node, "node", "", "`name` of this node in Kubernetes")
	fs.StringVar(&o.store, "store", storeKubernetes,
		"where to keep the states of volumes: kubernetes, or `file:DIR` on a trusted disk")
	fs.StringVar(&o.kubeconfig, "kubeconfig", "",
		"kubeconfig `file`; empty: the pod's service account")
	fs.StringVar(&o.cluster, "cluster", "",
		"`id` of the cluster; required with --store file:DIR, and not allowed otherwise")
	fs.StringVar(&o.endpoint, "endpoint", filepath.Join(kubeletDir, "plugins", driver.Name,
		"csi.sock"), "`socket` on which to serve CSI, at the path that the kubelet uses")

	fs.StringVar(&o.registration, "registration", filepath.Join(kubeletDir, "plugins_registry"),
		"the kubelet's `folder` for registrations; empty: do not register")
	fs.StringVar(&o.run, "run", runDir, "`folder` for lock files, on tmpfs")
	fs.StringVar(&o.files, "files", filepath.Join(dataDir, "volumes"),
		"`folder` for the files of volumes with backend: file, "+
			"on ext4, xfs or btrfs; empty: no such backend")
	fs.IntVar(&o.reserve, "reserve", 5,
		"`percent` of the --files file system to keep free, "+
			"since it may be the node's root disk")
	fs.BoolVar(&o.sparse, "sparse", false,
		"make the files of volumes sparse; "+
			"a full disk then causes I/O errors in pods")
	fs.StringVar(&o.disks, "disks", "",
		"comma-separated `disks` or partitions for volumes with backend: disk, by stable names; "+
			"empty: no such backend")
	fs.StringVar(&o.claims, "claims", filepath.Join(dataDir, "claims"),
		"`folder` that records which disk each volume has; it must survive reboots")
	fs.StringVar(&o.kmsSocket, "kms-socket", kmsSocket,
		"`socket` of a KMS v2 plugin, for keys: kms; empty: none")
	fs.StringVar(&o.keyFile, "key-file", "",
		"`file` with a key-encryption key, for keys: file; "+
			"the owner of that file's disk can decrypt all volumes")
	fs.StringVar(&o.previousKeyFile, "previous-key-file", "",
		"`file` with the previous key-encryption key; needed until every volume key is "+
			"rewrapped with --key-file")

	fs.StringVar(&o.metrics, "metrics", ":9633",
		"`address` of /metrics, /healthz and /readyz; empty: none")
	fs.DurationVar(&o.rewrapEvery, "rewrap-every", 10*time.Minute,
		"interval between checks for volume keys to rewrap with the current key-encryption key")
	fs.DurationVar(&o.requestsEvery, "requests-every", 10*time.Second,
		"interval between checks for requests of veilctl volume rewrap and destroy")
	fs.DurationVar(&o.trimEvery, "trim-every", 24*time.Hour,
		"interval between trims of volumes with discard: batch")
	fs.BoolVar(&o.privateMounts, "private-mounts", false,
		"do not require that mounts propagate to the host; "+
			"for a veil-csi in the kubelet's own mount namespace, not in a container")
	fs.IntVar(&o.checkMemory, "check-memory", 384,
		"maximum memory of one ext4 check in `MiB`; 0: no limit; "+
			"keep it below the limit of the container")
	fs.IntVar(&o.programsMemory, "programs-memory", 0,
		"maximum memory in `MiB` of all checks and other programs that run at the same time; "+
			"0: 384, or --check-memory if that is more")
	fs.StringVar(&o.latencyTuning, "latency-tuning", tuningAuto,
		"`when` to use dm-crypt's low-latency flags for volumes with tuning: latency: auto (with "+
			"Linux 6.8 or newer), on (for a kernel whose vendor fixed CVE-2024-26718) or off")

	fs.StringVar(&o.logLevel, "log-level", "info", "`level` debug, info, warn or error")
	fs.StringVar(&o.logFormat, "log-format", "text", "`format` text or json")
	return fs
}
