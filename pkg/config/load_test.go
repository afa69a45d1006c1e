package config_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/pflag"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/config"
)

var compareNetip = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

const good = `
node: node-1
clusterRanges: [10.244.0.0/16, "fd42:244::/48"]
serviceRanges: [10.96.0.0/12]
`

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "veild.yaml")
	filetest.Write(t, path, []byte(text), 0o600)
	return path
}

func prefixes(list ...string) (out []netip.Prefix) {
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func TestLoadFillsDefaults(t *testing.T) {
	got, err := config.Load(write(t, good))
	errtest.Must(t, err)
	want := config.Default()
	want.Node, want.ClusterRanges, want.ServiceRanges = "node-1",
		prefixes("10.244.0.0/16", "fd42:244::/48"), prefixes("10.96.0.0/12")
	if d := cmp.Diff(want, got, compareNetip); d != "" {
		t.Error(d)
	}
	if got.KeyFile != abi.KeyFile || got.Tunnel.Port != abi.TunnelPort || !got.Masquerade ||
		!got.CNI.Portmap {
		t.Errorf("defaults are missing: %+v", got)
	}
}

// An idle pair of nodes is silent, unless the configuration asks for keepalives.
func TestKeepaliveIsOffByDefault(t *testing.T) {
	for name, text := range map[string]string{
		"tunnel is not written":    good,
		"tunnel without keepalive": good + "tunnel: {mode: userspace}",
	} {
		got, err := config.Load(write(t, text))
		if err != nil || got.Tunnel.Keepalive != 0 {
			t.Errorf("%s: keepalive %d (%v), want 0", name, got.Tunnel.Keepalive, err)
		}
	}
}

func TestDefaultNodeIsTheHostNameInLowerCase(t *testing.T) {
	host, err := os.Hostname()
	errtest.Must(t, err)
	if got := config.Default().Node; got != strings.ToLower(host) {
		t.Errorf("node %q, host name %q", got, host)
	}
}

// Load reports all problems at once, each with its place and a correction.
func TestLoadReports(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want []string // all that is reported, in any order
	}{
		"nothing set": {"node: a",
			[]string{"clusterRanges: no range is given", "serviceRanges: no range is given"}},
		"JSON": {`{"node":"a","clusterRanges":["10.244.0.0/16"],"serviceRanges":["10.96.0.0/12"]}`,
			nil},
		"unknown key": {good + "clusterRange: [1.2.3.0/24]",
			[]string{"clusterRange: unknown key; did you mean clusterRanges?"}},
		"unknown nested key": {good + "tunnel: {ports: 1}",
			[]string{"tunnel.ports: unknown key; did you mean tunnel.port?"}},
		"key in another case": {good + "MTU: 1500",
			[]string{"MTU: unknown key; did you mean mtu?"}},
		"key given twice": {good + "node: node-2",
			[]string{`key "node" already set`}},
		"no YAML": {"a: [", []string{"yaml"}},
		"two documents": {good +
			"---\nnodeRanges: [192.0.2.0/24]\nnonsense: 1", []string{"2 YAML documents"}},
		"two, by its end": {good + "...\nnodeRanges: [192.0.2.0/24]",
			[]string{"2 YAML documents"}},
		"two, Windows": {good + "---\r\nmtu: 1400\r\n",
			[]string{"2 YAML documents"}},
		"two on the line": {good + "--- {mtu: 1400}",
			[]string{"2 YAML documents"}},
		"one between markers": {"%YAML 1.1\n# mine\n--- # begins\n" + good +
			"---\n\n# nothing\n...\n", nil},
		"a list for the whole": {"- a",
			[]string{"the whole file: is a list", "clusterRanges: no range",
				"serviceRanges: no range"}},
		"malformed ranges": {"node: a\nclusterRanges: [10.244.0.0/33, " +
			"x]\nserviceRanges: 10.96.0.0/12",
			[]string{`clusterRanges[0]: "10.244.0.0/33" is not a range such as`,
				`clusterRanges[1]: "x" is not`, "serviceRanges: is 10.96.0.0/12, write a list of"}},
		"host bits set": {"node: a\nclusterRanges: " +
			"[10.244.1.0/16]\nserviceRanges: [10.96.0.0/12]",
			[]string{"clusterRanges[0]: 10.244.1.0/16 has bits set beyond its length; write " +
				"10.244.0.0/16"}},
		"pods in services": {"node: a\nclusterRanges: " +
			"[10.96.4.0/24]\nserviceRanges: [10.96.0.0/12]",
			[]string{"serviceRanges[0]: 10.96.0.0/12 overlaps 10.96.4.0/24 of clusterRanges[0]"}},
		"ranges overlap": {"node: a\nclusterRanges: [10.244.0.0/16, " +
			"10.244.9.0/24]\nserviceRanges: [10.96.0.0/12]",
			[]string{"clusterRanges[1]: 10.244.9.0/24 overlaps"}},
		"nodes in pods": {good + "nodeRanges: [10.244.7.0/24]",
			[]string{"nodeRanges[0]: 10.244.7.0/24 overlaps"}},
		"everything": {"node: a\nclusterRanges: " +
			"[0.0.0.0/0]\nserviceRanges: [10.96.0.0/12]",
			[]string{"clusterRanges[0]: 0.0.0.0/0 holds addresses of 0.0.0.0/8"}},
		"link-local range": {"node: a\nclusterRanges: " +
			"[10.244.0.0/16]\nserviceRanges: [\"fe80::/64\"]",
			[]string{"serviceRanges[0]: fe80::/64 holds addresses of fe80::/10"}},
		"IPv4 in IPv6": {"node: a\nclusterRanges: " +
			"[10.244.0.0/16]\nserviceRanges: [\"::ffff:10.0.0.0/104\"]",
			[]string{"serviceRanges[0]: "}},
		"MTU for IPv6 pods": {good + "mtu: 1339",
			[]string{"mtu: MTU cannot work: 1339 bytes of underlay"}},
		"MTU as text": {good + "mtu: big",
			[]string{`mtu: "big" is not a whole number`}},
		"MTU with a fraction": {good + "mtu: 1500.5",
			[]string{"mtu: 1500.5 is not a whole number"}},
		"port 0": {good + "tunnel: {port: 0}",
			[]string{"tunnel.port: 0 is not a UDP port"}},
		"a keepalive of a day": {good + "tunnel: {keepalive: 86400}",
			[]string{"tunnel.keepalive: 86400"}},
		"port above": {good + "tunnel: {port: 65536}",
			[]string{"tunnel.port: 65536"}},
		"unknown mode": {good + "tunnel: {mode: boringtun}",
			[]string{`tunnel.mode: "boringtun" is unknown; write one of [auto kernel userspace]`}},
		"unknown source": {good + "source: {kind: etcd}",
			[]string{`source.kind: "etcd" is unknown`}},
		"snapshot without file": {good + "source: {kind: snapshot}",
			[]string{"source.file: is missing"}},
		"relative key path": {good + "keyFile: key",
			[]string{`keyFile: "key" is not an absolute path`}},
		"one file for both": {good + "keyFile: /run/a\nsnapshotFile: /run//a",
			[]string{"snapshotFile: /run/a is also keyFile"}},
		"empty value": {good + "keyFile:",
			[]string{"keyFile: null is not a text in quotes"}},
		"node in capitals": {strings.Replace(good, "node-1", "Node-1", 1),
			[]string{`node: "Node-1" is not a node name`}},
		"host routing alone": {good + "services: {hostRouting: ebpf}",
			[]string{"services.hostRouting: ebpf is done by the programs of serviceProxy ebpf; " +
				"write that too, or kernel"}},
		"host routing": {good +
			"serviceProxy: ebpf\nservices: {hostRouting: ebpf}", nil},
		"policies with host routing": {good +
			"policy: kubernetes\nserviceProxy: ebpf\nservices: {hostRouting: ebpf}", nil},
		"unknown own node": {good + "policyOwnNode: open",
			[]string{`policyOwnNode: "open" is unknown; write one of [judge allow]`}},
		"frontends of API servers": {good + "serviceProxy: ebpf\n" +
			"services: {apiFrontends: ['192.0.2.1:6443', '[2001:db8::1]:6443']}", nil},
		"frontends that cannot be": {good + "serviceProxy: ebpf\n" +
			"services: {apiFrontends: ['10.96.0.1:443', '127.0.0.1:6443', '192.0.2.1:0', '192.0.2.1']}",
			[]string{"services.apiFrontends[0]: 10.96.0.1:443 is a service's address (10.96.0.0/12); " +
				"it is translated to the API servers already: remove it",
				"services.apiFrontends[1]: 127.0.0.1:6443 is not the address and port of a server; write " +
					"for instance 192.0.2.1:6443",
				"services.apiFrontends[2]: 192.0.2.1:0 is not the address and port of a server; write for " +
					"instance 192.0.2.1:6443",
				`services.apiFrontends[3]: "192.0.2.1" is not an address with a port such as ` +
					"192.0.2.1:6443 or [2001:db8::1]:6443"}},
		"too many frontends": {good + "serviceProxy: ebpf\nservices: {apiFrontends: [" +
			strings.Repeat("'192.0.2.1:6443', ", 9) + "]}",
			[]string{"services.apiFrontends: 9 addresses are given; write at most 8"}},
		"unknown host routing": {good + "services: {hostRouting: fast}",
			[]string{`services.hostRouting: "fast" is unknown; write one of [kernel ebpf auto]`}},
		"log level": {good + "logLevel: loud",
			[]string{`logLevel: "loud" is unknown`}},
		"log format": {good + "logFormat: xml",
			[]string{`logFormat: "xml" is unknown; write one of [text json]`}},
		"log format json": {good + "logFormat: json", nil},
		"health address": {good +
			"serviceProxy: ebpf\nservices: {healthAddress: '10256'}",
			[]string{
				`services.healthAddress: "10256" is not an address with a port; write for instance :10256, or nothing`}},
		"NodePort addresses": {good +
			"serviceProxy: ebpf\nservices: {nodePortAddresses: ['192.0.2.0/24']}", nil},
		"a NodePort address with bits below": {good +
			"serviceProxy: ebpf\nservices: {nodePortAddresses: ['192.0.2.7/24']}",
			[]string{"services.nodePortAddresses[0]: 192.0.2.7/24 has bits below its length; " +
				"write for instance 192.0.2.0/24"}},
		"no health address": {good +
			"serviceProxy: ebpf\nservices: {healthAddress: ''}", nil},
		"API servers beside another proxy": {good + "services: {apiServers: ['192.0.2.1:6443']}", nil},
		"API servers of a snapshot": {good + "source: {kind: snapshot, file: /run/s}\n" +
			"services: {apiServers: ['192.0.2.1:6443']}",
			[]string{"services.apiServers: needs source.kind kubernetes: a snapshot has no API " +
				"servers; remove it, or write another source"}},
		"metrics address": {good + "metricsAddress: nowhere",
			[]string{"metricsAddress:"}},
		"many things": {"node: '-'\nclusterRange: []\nserviceRanges: [a]\nmtu: x\ntunnel: {port: " +
			"99999, mode: 1}", []string{
			"clusterRange: unknown key", "serviceRanges[0]:", "mtu:", "tunnel.port: 99999",
			"tunnel.mode: 1 is not a text", "node:", "clusterRanges: no range",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := config.Load(write(t, c.text))
			var lines []string
			if err != nil {
				lines = strings.Split(strings.TrimSpace(err.Error()), "\n")
			}

			// The YAML library's message for a key given twice has two lines.
			if len(lines) != len(c.want) && name != "key given twice" {
				t.Errorf("got %d problems, want %d:\n%v", len(lines), len(c.want), err)
			}

			for _, w := range c.want {
				if err == nil || !strings.Contains(err.Error(), w) {
					t.Errorf("no problem says %q:\n%v", w, err)
				}
			}
		})
	}
}

func TestLoadWithoutFile(t *testing.T) {
	if _, err := config.Load("/does/not/exist"); err == nil ||
		!strings.Contains(err.Error(), "/does/not/exist") {
		t.Errorf("got %v", err)
	}
	big := write(t, strings.Repeat("#", 1<<20+1))
	if _, err := config.Load(big); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("got %v", err)
	}
}

func TestFlagsOverrideTheFile(t *testing.T) {
	fs := pflag.NewFlagSet("veild", pflag.ContinueOnError)
	f := config.RegisterFlags(fs)
	err := fs.Parse([]string{"--config", write(t, good+"mtu: 9000\nmasquerade: false"),
		"--node=node-2", "--cluster-ranges", "10.1.0.0/16, fd42:1::/48",
		"--mtu", "1500", "--trust-disk", "--portmap=false", "--tunnel-port=4000",
		"--source", "snapshot", "--source-file=/run/s.json", "--metrics-address="})
	errtest.Must(t, err)
	got, err := f.Load()
	errtest.Must(t, err)
	if got.Node != "node-2" ||
		!slices.Equal(got.ClusterRanges, prefixes("10.1.0.0/16", "fd42:1::/48")) ||
		!slices.Equal(got.ServiceRanges, prefixes("10.96.0.0/12")) ||
		got.MTU != 1500 || !got.TrustDisk || got.CNI.Portmap || !got.CNI.Bandwidth ||
		got.Masquerade || got.Tunnel.Port != 4000 || got.Source.File != "/run/s.json" ||
		got.MetricsAddress != "" {
		t.Errorf("got %+v", got)
	}
}

func TestFlagsReportAllProblems(t *testing.T) {
	fs := pflag.NewFlagSet("veild", pflag.ContinueOnError)
	f := config.RegisterFlags(fs)
	if err := fs.Parse([]string{"--mtu=x", "--cluster-ranges=10.0.0.0/99",
		"--service-ranges=10.96.0.0/12", "--node=n", "--portmap=maybe"}); err != nil {
		t.Fatal(err)
	}
	_, err := f.Load()
	for _, want := range []string{`flag --mtu: mtu: "x" is not a whole number`,
		"flag --cluster-ranges: clusterRanges[0]:", "flag --portmap: cni.portmap:"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no problem says %q: %v", want, err)
		}
	}
	if strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("more problems than there are:\n%v", err)
	}
}

const kubeadm = `apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
networking:
  dnsDomain: cluster.local
  podSubnet: 10.244.0.0/16,fd42:244::/48
  serviceSubnet: 10.96.0.0/16,fd42:96::/112
`

func configMap() string {
	return "kind: ConfigMap\nmetadata: {name: kubeadm-config}\ndata:\n  ClusterConfiguration: |\n" +
		"    " + strings.ReplaceAll(strings.TrimSpace(kubeadm), "\n", "\n    ") + "\n"
}

func TestKubeadmFillsWhatIsNotSet(t *testing.T) {
	for name, text := range map[string]string{"documents": kubeadm, "config map": configMap(),
		"Windows line ends": strings.ReplaceAll(kubeadm, "\n", "\r\n")} {
		t.Run(name, func(t *testing.T) {
			path := write(t, text)
			got, err := config.Load(write(t,
				"node: a\nserviceRanges: [10.112.0.0/12]\nkubeadmConfig: "+path))
			errtest.Must(t, err)
			if !slices.Equal(got.ClusterRanges, prefixes("10.244.0.0/16", "fd42:244::/48")) ||
				!slices.Equal(got.ServiceRanges, prefixes("10.112.0.0/12")) {
				t.Errorf("pods %v, services %v", got.ClusterRanges, got.ServiceRanges)
			}
		})
	}

	for name, c := range map[string]struct{ text, want string }{
		"another kind": {"kind: Pod", "no document of kind ClusterConfiguration"},
		"malformed subnet": {"kind: ClusterConfiguration\nnetworking: {podSubnet: " +
			"10.0.0.0}", `networking.podSubnet: "10.0.0.0" is not a range`},
		"no YAML": {"a: [", "document 1"},
		"config map in a config map": {"kind: ConfigMap\ndata:\n  ClusterConfiguration: |\n    " +
			"kind: ConfigMap\n    data: {ClusterConfiguration: x}\n", "no document of kind"},
		"without networking: no pods": {"kind: ClusterConfiguration",
			"clusterRanges: no range is given"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := config.Load(write(t,
				"node: a\nserviceRanges: [10.96.0.0/12]\nkubeadmConfig: "+write(t, c.text)))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestParse(t *testing.T) {
	const kubeadm = "kind: ClusterConfiguration\nnetworking: {podSubnet: 10.244.0.0/16, " +
		"serviceSubnet: 10.96.0.0/12}\n"
	c, err := config.Parse("node-1", []byte("kubeadmConfig: /etc/kubeveil/kubeadm.yaml"),
		[]byte(kubeadm))
	if err != nil || c.Node != "node-1" || len(c.ClusterRanges) != 1 ||
		c.ClusterRanges[0].String() != "10.244.0.0/16" {
		t.Errorf("got %+v, %v", c, err)
	}
	for name, tt := range map[string]struct {
		text    string
		kubeadm []byte
		want    string
	}{
		"no such ConfigMap": {"kubeadmConfig: /a", nil, "open /a: file does not exist"},
		"no ranges at all":  {"", nil, "clusterRanges: no range is given"},
		"kubeadm without pods": {"kubeadmConfig: /a", []byte("kind: ClusterConfiguration"),
			"networking.podSubnet"},
		"no YAML": {"{", nil, "configuration: "},
	} {
		if _, err := config.Parse("node-1", []byte(tt.text), tt.kubeadm); err == nil ||
			!strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", name, err, tt.want)
		}
	}
}
