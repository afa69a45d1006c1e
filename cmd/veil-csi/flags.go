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

// options are the flags.
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

// flags returns the flags, which set o.
func (o *options) flags() *pflag.FlagSet {
	fs := commandline.New("veil-csi")
	fs.StringVar(&o.node, "node", "", "`name` of this node in Kubernetes")
	fs.StringVar(&o.store, "store", storeKubernetes,
		"where the states of volumes are: kubernetes, or `file:DIR` on a trusted disk")
	fs.StringVar(&o.kubeconfig, "kubeconfig", "",
		"kubeconfig `file`; empty: the pod's service account")
	fs.StringVar(&o.cluster, "cluster", "",
		"`id` of the cluster, with --store file:DIR; Kubernetes has one of its own")
	fs.StringVar(&o.endpoint, "endpoint", filepath.Join(kubeletDir, "plugins", driver.Name,
		"csi.sock"), "`socket` that serves CSI, at the path the kubelet knows")

	fs.StringVar(&o.registration, "registration", filepath.Join(kubeletDir, "plugins_registry"),
		"the kubelet's `folder` for registrations; empty: do not register")
	fs.StringVar(&o.run, "run", runDir, "`folder` for locks, on tmpfs")
	fs.StringVar(&o.files, "files", filepath.Join(dataDir, "volumes"),
		"`folder` for the files of volumes with backend: file, "+
			"on ext4, xfs or btrfs; empty: no such backend")
	fs.IntVar(&o.reserve, "reserve", 5,
		"`percent` of the file system of --files that no volume takes: "+
			"it may be the node's root disk")
	fs.BoolVar(&o.sparse, "sparse", false,
		"let files of volumes take room as they are written; "+
			"a full disk is then an I/O error for pods")
	fs.StringVar(&o.disks, "disks", "",
		"comma-separated `disks` or partitions for backend: disk, by stable names; "+
			"empty: no such backend")
	fs.StringVar(&o.claims, "claims", filepath.Join(dataDir, "claims"),
		"`folder` with the disk of each volume")
	fs.StringVar(&o.kmsSocket, "kms-socket", kmsSocket,
		"`socket` of a KMS v2 plugin, for keys: kms; empty: none")
	fs.StringVar(&o.keyFile, "key-file", "",
		"`file` with a key-encryption key, for keys: file; "+
			"it protects nothing from the owner of that file's disk")
	fs.StringVar(&o.previousKeyFile, "previous-key-file", "",
		"`file` with the key-encryption key before, until all volumes are wrapped by the new one")

	fs.StringVar(&o.metrics, "metrics", ":9633",
		"`address` of /metrics, /healthz and /readyz; empty: none")
	fs.DurationVar(&o.rewrapEvery, "rewrap-every", 10*time.Minute,
		"how often keys are looked at that another key-encryption key should wrap")
	fs.DurationVar(&o.requestsEvery, "requests-every", 10*time.Second,
		"how often requests of veilctl volume rewrap are looked for, in what is watched")
	fs.DurationVar(&o.trimEvery, "trim-every", 24*time.Hour,
		"how often volumes with discard: batch tell their disk which blocks are free")
	fs.BoolVar(&o.privateMounts, "private-mounts", false,
		"do not require that mounts reach the host: "+
			"for a veil-csi in the kubelet's own mount namespace, not in a container")
	fs.IntVar(&o.checkMemory, "check-memory", 384,
		"most memory for one check of an ext4, `MiB`; 0: no limit; "+
			"keep it below the limit of the container")
	fs.IntVar(&o.programsMemory, "programs-memory", 0,
		"most memory for all checks and other programs that run at once, `MiB`; "+
			"0: 384, or --check-memory if that is more")
	fs.StringVar(&o.latencyTuning, "latency-tuning", tuningAuto,
		"`when` tuning: latency has dm-crypt's flags: auto, with Linux 6.8 or newer; on, where "+
			"the vendor has fixed CVE-2024-26718; off")

	fs.StringVar(&o.logLevel, "log-level", "info", "`level` debug, info, warn or error")
	fs.StringVar(&o.logFormat, "log-format", "text", "`format` text or json")
	return fs
}
