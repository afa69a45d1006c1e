package deptest

// Rule forbids an import, except for some packages. Packages are written by their paths in this
// module, such as pkg/abi. A path stands for the packages below it as well.
type Rule struct {
	// Deps are the packages that must not be imported: packages of this module, or other packages
	// by their full import paths.
	Deps []string
	// In are the packages to which the rule applies. Nil means Product.
	In []string
	// Allow are the packages that may import Deps nevertheless.
	Allow []string
	// Tests are further packages whose tests may import Deps.
	Tests []string
	// Reason is a clause that ends a sentence: "…, because …".
	Reason string
}

// Product are the folders of shipped packages, and of packages for which the same rules hold.
var Product = []string{"bpf", "cmd", "csi", "internal", "manifests", "pkg", "plugins"}

var leaves = []string{"pkg/abi", "pkg/cluster", "pkg/config", "pkg/wgkey"}

// Rules are the import rules, besides Layers. The Go compiler enforces others: rules about internal
// folders, and the rule against import cycles.
//
// A package whose name ends in "test", and internal/golden, has helpers of tests. It counts as a
// test, and only tests may import it. A helper that imports packages of pkg is beside the package
// for whose tests it is, such as pkg/pod/podtest.
var Rules = []Rule{
	{Deps: []string{"e2e"}, Reason: "the product does not know its tests"},
	{Deps: []string{"pkg"}, In: []string{"csi"},
		Reason: "volumes and the network share `internal` alone"},
	{Deps: []string{"csi"}, In: []string{"pkg", "plugins", "internal"},
		Reason: "volumes and the network share `internal` alone"},
	{Deps: []string{"pkg"}, In: []string{"internal"},
		Reason: "`internal` is below `pkg` and `csi`"},
	{Deps: []string{"pkg/agent"}, Allow: []string{"cmd/veild"},
		Reason: "the agent knows all other packages, and only the daemon knows the agent"},
	{Deps: []string{"bpf"}, Allow: []string{"pkg/guard", "pkg/service/bpfmaps"},
		Tests:  []string{"internal/bpfobj", "pkg/engine", "pkg/policy/nftables"},
		Reason: "two packages load programs, and all others use what is pinned"},
	{Deps: []string{"csi/volume"},
		In:     []string{"csi/backend", "csi/crypt", "csi/internal", "csi/keyring"},
		Reason: "the state machine of volumes stands on them, and they do not know it"},

	{Deps: []string{"k8s.io/client-go"},
		Allow: []string{"cmd/veilctl", "csi/kubestore", "internal/reflector",
			"internal/tokenfile", "pkg/kube", "pkg/remote", "pkg/site/credential",
			"pkg/site/link", "pkg/site/replica"},
		Tests: []string{"cmd/veil-csi", "pkg/bench/volumes", "pkg/site/inventory"},
		Reason: "the API server is a transport; all other packages work from plain values, " +
			"wherever they come from"},
	{Deps: []string{"golang.zx2c4.com/wireguard/wgctrl"},
		Allow: []string{"cmd/veil-tools", "pkg/engine/enginetest", "pkg/tunnel"},
		Reason: "one package configures WireGuard devices, so that several can serve one peer; " +
			"veil-tools makes the bare device that benchmarks compare with"},
	{Deps: []string{"golang.zx2c4.com/wireguard/device"},
		Allow:  []string{"pkg/engine/enginetest", "pkg/worker"},
		Reason: "userspace WireGuard runs in a process of its own"},
	{Deps: []string{"github.com/vishvananda/netlink"},
		Allow:  []string{"cmd/veil-tools", "internal/nl"},
		Reason: "one package retries interrupted dumps, and makes errors comparable"},
	{Deps: []string{"github.com/vishvananda/netns"},
		Reason: "internal/netns changes a thread's namespace, and never returns a lost thread " +
			"to Go"},
	{Deps: []string{"os/exec"}, In: []string{"csi"}, Allow: []string{"csi/mount"},
		Tests:  []string{"csi"},
		Reason: "no volume needs cryptsetup, dmsetup or losetup; csi/mount runs mkfs and fsck"},

	{Deps: []string{"pkg/config", "sigs.k8s.io/yaml"},
		In:     []string{"pkg/abi", "pkg/pod", "plugins"},
		Reason: "the plugin reads no file of the operator and links no parser of YAML"},
	{Deps: []string{"pkg/kube", "pkg/tunnel", "k8s.io", "github.com/cilium/ebpf"},
		In:     []string{"plugins"},
		Reason: "ADD needs no API server and no tunnel; pkg/pod does what ADD does to the kernel"},
	{Deps: []string{"internal/netns", "internal/nft", "internal/nl", "k8s.io/api"}, In: leaves,
		Reason: "what decides is pure: no kernel, no Kubernetes"},
}

// Layer is a floor of a room, which is a top-level folder. The packages of a floor may import only
// packages of lower floors in that room.
type Layer struct {
	What     string
	Packages []string
}

// Layers are the floors of each room that has floors, the highest first. A package belongs to the
// longest path in Layers that it is at or below. Packages of the same path may import each other.
var Layers = map[string][]Layer{
	"pkg": {
		{"the loop of the daemon", []string{"pkg/agent"}},
		{"verbs on a node without a daemon", []string{"pkg/node"}},
		{"what keeps a table in force",
			[]string{"pkg/conntrack", "pkg/drop", "pkg/export/keeper", "pkg/flow",
				"pkg/policy/keeper", "pkg/service/keeper"}},
		{"links with other clusters", []string{"pkg/site"}},
		{"the API server; checks and benchmarks of a cluster",
			[]string{"pkg/bench", "pkg/connectivity", "pkg/kube", "pkg/passage"}},
		{"what the agent drives", []string{"pkg/feature"}},
		{"planners and their tables; the engine's process",
			[]string{"pkg/export", "pkg/policy", "pkg/service", "pkg/worker"}},
		{"each one part of the kernel or of a program", []string{"pkg/cniplugin", "pkg/config",
			"pkg/engine", "pkg/firewall", "pkg/guard", "pkg/hostnet", "pkg/leak",
			"pkg/pathmtu", "pkg/pod", "pkg/reach", "pkg/remote", "pkg/rootfs", "pkg/source",
			"pkg/telemetry", "pkg/tunnel"}},
		{"network settings of the kernel", []string{"pkg/sysctl"}},
		{"numbers and names that programs share", []string{"pkg/abi"}},
		{"what is believed of the cluster", []string{"pkg/cluster"}},
		{"keys, the version", []string{"pkg/version", "pkg/wgkey"}},
	},
	"csi": {
		{"the CSI services; the API server; clean-up; proofs", []string{"csi/cleanup",
			"csi/driver", "csi/kerneltest", "csi/kubestore"}},
		{"the life of a volume", []string{"csi/volume"}},
		{"ciphertext: place and protection; file systems",
			[]string{"csi/backend", "csi/crypt", "csi/mount"}},
		{"keys; block devices", []string{"csi/internal/blk", "csi/keyring"}},
	},
}
