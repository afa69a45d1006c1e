package preflight

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/kubeveil/kubeveil/internal/filetest"
)

const kubeadm = "kind: ClusterConfiguration\nnetworking: {podSubnet: " +
	"'10.244.0.0/16,fd42:1::/48', " +
	"serviceSubnet: '10.96.0.0/12,fd42:2::/112'}\n"

const proxy = `
clusters: [{cluster: {server: "https://198.18.0.2:6443"}}]
users: [{user: {tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token}}]
`

func node(i int) NodeFacts {
	return NodeFacts{
		Name: fmt.Sprintf("node-%d", i), Created: time.Unix(int64(i), 0), OS: "linux",
		Arch:   "amd64",
		Kernel: "6.1.0-56-cloud-amd64", Runtime: "containerd://1.6.20", Kubelet: "v1.36.3",
		Addresses: []netip.Addr{netip.AddrFrom4([4]byte{198, 18, 0, byte(10 + i)})},
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", i)),
			netip.MustParsePrefix(fmt.Sprintf("fd42:1:0:%d::/64", i))},
	}
}

// good returns the facts of a new kubeadm cluster. Only the finding about nodeRanges is not OK.
func good() Facts {
	return Facts{
		Server: Server{Address: "https://198.18.0.2:6443", Version: "v1.36.3", Policies: true},
		Config: Config, ConfigFrom: "the manifests", Escalate: true, Kubeadm: []byte(kubeadm),
		Proxy: []byte(proxy),
		Controller: Controller{Seen: true, Allocates: true,
			ClusterCIDR: "10.244.0.0/16,fd42:1::/48"},
		Nodes:        []NodeFacts{node(1), node(2)},
		APIServers:   []netip.Addr{netip.MustParseAddr("198.18.0.2")},
		ServiceAddrs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		DaemonSets:   []string{"kube-system/kube-proxy"},
		Groups:       []string{"apps", "apiextensions.k8s.io"},
		Unread:       map[string]string{},
	}
}

// frontend sets services.apiFrontends, and the certificates of the servers.
func frontend(f *Facts, found ...Certificate) {
	f.Config += "serviceProxy: ebpf\nservices: {apiFrontends: ['198.18.0.9:6443']}\n"
	f.Certificates = found
}

func certificate(server string, names ...string) Certificate {
	c := Certificate{Server: netip.AddrPortFrom(netip.MustParseAddr(server), 6443)}
	for _, n := range names {
		c.Names = append(c.Names, netip.MustParseAddr(n))
	}
	return c
}

// text returns findings as lines: level check: found.
func text(findings []Finding) string {
	var b strings.Builder
	for _, f := range findings {
		fmt.Fprintf(&b, "%s %s: %s\n", f.Level, f.Check, f.Found)
	}
	return b.String()
}

func TestFreshCluster(t *testing.T) {
	const want = "ok api server: https://198.18.0.2:6443, Kubernetes v1.36.3\n" +
		"ok rights: you may create and change all objects of the manifests\n" +
		"ok Kubeveil: not installed\n" +
		"ok ranges: pods 10.244.0.0/16 and fd42:1::/48, services 10.96.0.0/12 and fd42:2::/112, " +
		"by the configuration of the manifests\n" +
		"ok way to the API server: https://198.18.0.2:6443, from the ConfigMap kube-proxy\n" +
		"ok pod CIDRs: each of 2 nodes has one\n" +
		"ok overlaps: none among pod CIDRs, services, node addresses and API servers\n" +
		"warning node ranges: nodeRanges is not set: an attacker on a node could claim any " +
		"address, and receive the packets that pods send to it\n" +
		"ok other CNI: none of the well-known plugins\n" +
		"ok kernels: Linux 6.1.0-56-cloud-amd64; `veild check` on a node checks that it has BPF, " +
		"nftables and WireGuard\n" +
		"ok container runtimes: containerd://1.6.20\n" +
		"ok MTU: not known here; veild reads it from each node's interface, which needs at least " +
		"1340 (`veild check` checks it on the node)\n"
	if diff := cmp.Diff(want, text(Judge(good()))); diff != "" {
		t.Error(diff)
	}
}

// Each situation changes one fact of a new cluster. One finding must report it, with a remedy.
func TestEachSituationHasOneFinding(t *testing.T) {
	prefix := netip.MustParsePrefix
	for name, tt := range map[string]struct {
		change   func(f *Facts)
		level    Level
		check    string
		found    string
		advice   string
		notFound string
	}{
		"an API server that is away": {func(f *Facts) { f.Server.Err = "connection refused" },
			Error, "api server", "connection refused", "-kubeconfig", "rights"},
		"an old API server": {func(f *Facts) { f.Server.Version = "v1.29.9-eks-1" }, Error,
			"api server", "v1.29.9", "upgrade to 1.30", ""},
		"the first new enough": {func(f *Facts) { f.Server.Version = "v1.30.0" }, OK,
			"api server", "v1.30.0", "", ""},
		"API servers without goaway": {func(f *Facts) {
			f.StaticServers = []StaticServer{{"api-a", "0.001"}, {"api-b", ""}, {"api-c", "0"}}
		}, Warning, "spread of connections", "api-b, api-c: no --goaway-chance",
			"--goaway-chance=0.001", "api-a"},
		"API servers with goaway": {func(f *Facts) {
			f.StaticServers = []StaticServer{{"api-a", "0.001"}, {"api-b", "0.02"}}
		}, OK, "spread of connections", "each of 2", "", ""},
		"one API server": {func(f *Facts) { f.StaticServers = []StaticServer{{"api-a", ""}} },
			OK, "api server", "v1.36.3", "", "spread of connections"},
		"frontends that all certificates name": {func(f *Facts) {
			frontend(f, certificate("198.18.0.2", "198.18.0.9"), certificate("198.18.0.3",
				"198.18.0.9", "fd42::9"), certificate("fd42::2"))
		}, OK, "API frontends", "198.18.0.9:6443 is named by the certificates of " +
			"198.18.0.2:6443, 198.18.0.3:6443", "", "warning API frontends"},
		"frontends that some certificates name": {func(f *Facts) {
			frontend(f, certificate("198.18.0.2", "198.18.0.9"),
				certificate("198.18.0.3", "198.18.0.3"))
		}, Warning, "API frontends", "198.18.0.9:6443 is not translated to 198.18.0.3:6443",
			"add 198.18.0.9 to the names", "not translated, because"},
		"frontends that no certificate names": {func(f *Facts) {
			frontend(f, certificate("198.18.0.2"), certificate("fd42::2", "198.18.0.9"))
		}, Warning, "API frontends", "198.18.0.9:6443 is not translated, because the certificates of " +
			"198.18.0.2:6443 do not name it", "apiServer.certSANs", ""},
		"frontends of another family": {func(f *Facts) { frontend(f, certificate("fd42::2")) },
			Warning, "API frontends", "no API server has an address of the family of " +
				"198.18.0.9:6443", "remove it", ""},
		"frontends whose servers are out of reach": {func(f *Facts) {
			frontend(f, Certificate{Err: "timeout",
				Server: netip.MustParseAddrPort("198.18.0.2:6443")})
		}, Warning, "API frontends", "cannot read from here whether certificates name " +
			"198.18.0.9:6443: 198.18.0.2:6443 (timeout)",
			"veilctl status", "not translated"},
		"no version at all": {func(f *Facts) { f.Server.Version = "main" }, Warning,
			"api server", `"main"`, "1.30", ""},
		"no admission policies": {func(f *Facts) { f.Server.Policies = false }, Error,
			"api server", "ValidatingAdmissionPolicy", "enable it again", ""},
		"no right to create CRDs": {func(f *Facts) {
			f.Denied = []Right{{Verb: "create", Group: "apiextensions.k8s.io",
				Resource: "customresourcedefinitions"}}
		}, Error, "rights", "create customresourcedefinitions.apiextensions.k8s.io",
			"administrator", ""},
		"no right to give rights": {func(f *Facts) {
			f.Escalate, f.Ungiven = false, []Right{{Verb: "delete", Group: "kubeveil.io",
				Resource: "veilnodes"}}
		}, Error, "rights", "delete veilnodes.kubeveil.io", "administrator", ""},
		"no escalation needed": {func(f *Facts) { f.Escalate = false }, OK, "rights", "you may",
			"", ""},
		"pod security": {func(f *Facts) { f.PodSecurity = "restricted" }, Error,
			"pod security", "restricted", "kubectl label", ""},
		"not a kubeadm cluster": {func(f *Facts) { f.Kubeadm = nil }, Error, "ranges",
			"no ConfigMap kubeadm-config", "clusterRanges", "ok overlaps"},
		"no pod network": {func(f *Facts) {
			f.Kubeadm = []byte("kind: ClusterConfiguration\nnetworking: {serviceSubnet: " +
				"10.96.0.0/12}")
		}, Error, "ranges", "no networking.podSubnet", "--pod-network-cidr", ""},
		"ranges that overlap": {func(f *Facts) {
			f.Kubeadm = []byte(strings.ReplaceAll(kubeadm, "10.96.0.0/12", "10.244.128.0/20"))
		}, Error, "ranges", "overlaps", "correct", ""},
		"ranges by hand": {func(f *Facts) {
			f.Kubeadm = nil
			f.Config = "clusterRanges: [10.244.0.0/16, 'fd42:1::/48']\nserviceRanges: " +
				"[10.96.0.0/12]\n"
		}, OK, "ranges", "pods 10.244.0.0/16", "", "kubeadm-config"},
		"services elsewhere": {func(f *Facts) {
			f.ServiceAddrs[0] = netip.MustParseAddr("172.16.0.1")
		}, Error, "ranges", "172.16.0.1", "--service-cluster-ip-range", ""},
		"another cluster CIDR": {func(f *Facts) { f.Controller.ClusterCIDR = "10.0.0.0/8" }, Error,
			"ranges", "10.0.0.0/8", "--cluster-cidr", ""},
		"no kube-proxy": {func(f *Facts) { f.Proxy = nil }, Error, "way to the API server",
			"no ConfigMap kube-proxy", "--config FILE", ""},
		"no kubeconfig": {func(f *Facts) {
			f.Config = "kubeadmConfig: /etc/kubeveil/kubeadm.yaml\n"
		}, Warning, "way to the API server", "source.kubeconfig is empty", "name a kubeconfig", ""},
		"API servers in the table": {func(f *Facts) {
			f.Config = "kubeadmConfig: /etc/kubeveil/kubeadm.yaml\nserviceProxy: ebpf\nservices: " +
				"{apiServers: ['198.18.0.2:6443', '[fd42::2]:6443']}\n"
		}, OK, "way to the API server", "198.18.0.2:6443, [fd42::2]:6443", "",
			"source.kubeconfig is empty"},
		"API servers beside kube-proxy": {func(f *Facts) {
			f.Config = "kubeadmConfig: /etc/kubeveil/kubeadm.yaml\nservices: {apiServers: " +
				"['198.18.0.2:6443']}\n"
		}, OK, "way to the API server", "198.18.0.2:6443", "", "source.kubeconfig is empty"},
		"kube-proxy by service": {func(f *Facts) {
			f.Proxy = []byte(strings.ReplaceAll(proxy, "198.18.0.2:6443", "10.96.0.1:443"))
		}, Error, "way to the API server", "10.96.0.1", "outside of these ranges", ""},
		"kube-proxy by name": {func(f *Facts) {
			f.Proxy = []byte(strings.ReplaceAll(proxy, "198.18.0.2", "api.example"))
		}, OK, "way to the API server", "api.example", "", ""},
		"kube-proxy by keys": {func(f *Facts) {
			f.Proxy = []byte(strings.ReplaceAll(proxy, "tokenFile", "clientKey"))
		}, Error, "way to the API server", "no tokenFile", "tokenFile", ""},
		"a kubeconfig of no use": {func(f *Facts) { f.Proxy = []byte("[]") }, Error,
			"way to the API server", "cannot be read", "kubeadm init phase", ""},
		"no node": {func(f *Facts) { f.Nodes = nil }, Warning, "pod CIDRs",
			"no node yet", "join", "kernels"},
		"pod CIDRs to come": {func(f *Facts) { f.Nodes[1].PodCIDRs = nil }, Warning,
			"pod CIDRs", "node-2: none yet", "log", ""},
		"pod CIDRs never": {func(f *Facts) {
			f.Nodes[1].PodCIDRs = nil
			f.Controller.Allocates = false
		}, Error, "pod CIDRs", "node-2: none, and", "--allocate-node-cidrs", ""},
		"none, nobody known": {func(f *Facts) {
			f.Controller, f.Nodes[0].PodCIDRs, f.Nodes[1].PodCIDRs = Controller{}, nil, nil
		}, Error, "pod CIDRs", "no node has one", "--allocate-node-cidrs", ""},
		"one family of two": {func(f *Facts) {
			f.Nodes[0].PodCIDRs = f.Nodes[0].PodCIDRs[:1]
		}, Error, "pod CIDRs", "node-1", "each family", ""},
		"the same pod CIDR twice": {func(f *Facts) { f.Nodes[1].PodCIDRs = f.Nodes[0].PodCIDRs },
			Error, "overlaps", "node node-2: it claims the pod prefix 10.244.1.0/24",
			"delete the Node", ""},
		"a pod CIDR outside": {func(f *Facts) {
			f.Nodes[0].PodCIDRs[0] = prefix("10.99.0.0/24")
		}, Error, "overlaps", "10.99.0.0/24", "", "ok overlaps"},
		"a node in the pod range": {func(f *Facts) {
			f.Nodes[0].Addresses[0] = netip.MustParseAddr("10.244.9.9")
		}, Error, "overlaps", "10.244.9.9", "", "ok overlaps"},
		"an API server in a range": {func(f *Facts) {
			f.APIServers[0] = netip.MustParseAddr("10.96.7.7")
		}, Error, "overlaps", "10.96.7.7", "choose ranges", "ok overlaps"},
		"node ranges set": {func(f *Facts) {
			f.Config += "nodeRanges: [198.18.0.0/24]\n"
		}, OK, "node ranges", "198.18.0.0/24", "", ""},
		"a node outside of them": {func(f *Facts) {
			f.Config += "nodeRanges: [198.18.1.0/24]\n"
		}, Error, "overlaps", "198.18.0.11", "", "ok overlaps"},
		"Flannel runs": {func(f *Facts) {
			f.DaemonSets = append(f.DaemonSets, "kube-flannel/kube-flannel-ds")
		}, Error, "other CNI", "Flannel is installed", "remove it", "none of"},
		"Cilium was there": {func(f *Facts) { f.Groups = append(f.Groups, "cilium.io") },
			Warning, "other CNI", "Cilium was installed: there are custom resources of cilium.io",
			"/etc/cni/net.d", "none of"},
		"Calico on nodes": {func(f *Facts) {
			f.Nodes[0].Annotations = []string{"projectcalico.org/IPv4Address"}
		}, Warning, "other CNI", "annotations on node-1", "/etc/cni/net.d", "none of"},
		"Multus": {func(f *Facts) {
			f.DaemonSets = append(f.DaemonSets, "kube-system/kube-multus-ds")
		}, Warning, "other CNI", "Multus", "05-kubeveil.conflist", ""},
		"Ready too early": {func(f *Facts) { f.Nodes[0].Ready = true }, Warning,
			"other CNI", "node-1: Ready before", "/etc/cni/net.d", ""},
		"pods of another network": {func(f *Facts) {
			f.PodAddrs = map[string]netip.Addr{"a/b": netip.MustParseAddr("192.168.1.1")}
		}, Error, "other CNI", "a/b (192.168.1.1)", "delete", ""},
		"an old kernel": {func(f *Facts) { f.Nodes[0].Kernel = "4.18.0-553.el8" }, Error,
			"kernels", "node-1: Linux 4.18", "5.10", ""},
		"the oldest kernel": {func(f *Facts) { f.Nodes[0].Kernel = "5.10.0-32-amd64" }, OK,
			"kernels", "5.10.0-32", "", ""},
		"a node of Windows": {func(f *Facts) { f.Nodes[0].OS = "windows" }, Warning,
			"kernels", "node-1", "nothing is sent in clear", ""},
		"an old containerd": {func(f *Facts) { f.Nodes[0].Runtime = "containerd://1.5.9" },
			Error, "container runtimes", "1.5.9", "1.6", ""},
		"another runtime": {func(f *Facts) { f.Nodes[0].Runtime = "docker://24.0.7" },
			Warning, "container runtimes", "docker", "CNI 1.0.0", ""},
		"an old kubelet": {func(f *Facts) { f.Nodes[0].Kubelet = "v1.28.1" }, Warning,
			"kubelets", "node-1", "AppArmor", ""},
		"two architectures": {func(f *Facts) { f.Nodes[0].Arch = "arm64" }, Warning,
			"kubelets", "amd64, arm64", "-arch", ""},
		"a small underlay": {func(f *Facts) { f.Nodes[0].MTU = 1300 }, Error, "MTU",
			"node-1", "raise", ""},
		"a mixed underlay": {func(f *Facts) {
			f.Nodes[0].MTU, f.Nodes[1].MTU = 1500, 8896
		}, Warning, "MTU", "1500 to 8896", "veild probes", ""},
		"an MTU that is too small": {func(f *Facts) { f.Config += "mtu: 700\n" }, Error, "ranges",
			"mtu: ", "correct", ""},
		"partly installed": {func(f *Facts) { f.Objects = Manifests[:6] }, Warning,
			"Kubeveil", "clusterrolebindings/kubeveil-veild", "kubectl apply -f kubeveil.yaml", ""},
		"rights without a policy": {func(f *Facts) { f.Objects = Manifests[6:7] }, Warning,
			"Kubeveil", "validatingadmissionpolicies/", "do so soon", ""},
		"installed and well": {func(f *Facts) {
			f.Objects, f.Daemons = Manifests, []Daemon{{"veild", "kubeveil:1", 2, 2},
				{"veil-wg", "kubeveil:1", 2, 2}}
		}, OK, "Kubeveil", "veild 2 of 2 ready (kubeveil:1)", "", ""},
		"installed and not ready": {func(f *Facts) {
			f.Objects, f.Daemons = Manifests, []Daemon{{"veild", "kubeveil:1", 2, 1}}
		}, Warning, "Kubeveil", "veild 1 of 2 ready", "veilctl status", ""},
		"an older Kubeveil": {func(f *Facts) {
			f.Definition = &Definition{Versions: []string{"v1alpha0"}, Established: true}
		}, Error, "Kubeveil", "v1alpha0", "uninstall", ""},
		"a CRD on its way out": {func(f *Facts) { f.Definition = &Definition{Leaving: true} },
			Error, "Kubeveil", "being deleted", "wait", ""},
		"an uninstall half way": {func(f *Facts) { f.Cleaning = true }, Error, "Kubeveil",
			"kubeveil-cleanup", "uninstall.yaml", ""},
		"what may not be read": {func(f *Facts) {
			f.Unread["nodes"] = "forbidden"
			f.Nodes = nil
		}, Warning, "nodes", "forbidden", "check it by hand", "no node yet"},
	} {
		t.Run(name, func(t *testing.T) {
			f := good()
			tt.change(&f)
			findings := Judge(f)
			i := slices.IndexFunc(findings, func(f Finding) bool {
				return f.Level == tt.level && f.Check == tt.check &&
					strings.Contains(f.Found, tt.found)
			})
			if i < 0 {
				t.Fatalf("no %s of %s with %q in\n%s", tt.level, tt.check, tt.found, text(findings))
			}

			if !strings.Contains(findings[i].Do, tt.advice) ||
				(findings[i].Do == "") != (tt.level == OK) {
				t.Errorf("advice %q, want %q", findings[i].Do, tt.advice)
			}
			if tt.notFound != "" && strings.Contains(text(findings), tt.notFound) {
				t.Errorf("%q is in\n%s", tt.notFound, text(findings))
			}
			if tt.level != Error && Count(findings, Error) > 0 {
				t.Errorf("an error where none should be:\n%s", text(findings))
			}
		})
	}
}

// The lists of this package agree with manifests/. Otherwise, an object that is added there would
// not be checked.
func TestAgreesWithManifests(t *testing.T) {
	type object struct {
		Kind, APIVersion string
		Metadata         struct{ Name, Namespace string }
		Data             map[string]string
		Rules            []struct{ APIGroups, Resources, ResourceNames, Verbs []string }
	}
	var found []Object

	var granted []Right
	for _, pattern := range []string{"crd/*.yaml", "cni/*.yaml"} {
		files, err := filepath.Glob(filepath.Join("../../../../manifests", pattern))
		if err != nil || len(files) == 0 {
			t.Fatal(files, err)
		}

		for _, file := range files {
			b := filetest.Read(t, file)
			var o object
			if err := yaml.Unmarshal(b, &o); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			group, _, ok := strings.Cut(o.APIVersion, "/")
			if !ok {
				group = ""
			}

			resource := strings.ToLower(o.Kind) + "s"
			if base, ok := strings.CutSuffix(resource, "ys"); ok {
				resource = base + "ies"
			}

			switch o.Kind {
			case "Kustomization":
				continue
			case "ConfigMap":
				var have, want any
				if yaml.Unmarshal([]byte(o.Data["veild.yaml"]), &have) != nil ||
					yaml.Unmarshal([]byte(Config), &want) != nil || !cmp.Equal(have, want) {
					t.Errorf("Config is not that of %s: %s", file, cmp.Diff(want, have))
				}
			}

			found = append(found, Object{group, resource, o.Metadata.Namespace, o.Metadata.Name})
			for _, r := range o.Rules {
				for _, verb := range r.Verbs {
					right := Right{verb, r.APIGroups[0], r.Resources[0], o.Metadata.Namespace,
						strings.Join(r.ResourceNames, "")}
					granted = append(granted, right)
				}
			}
		}
	}

	byText := cmp.Transformer("sorted", func(in []Object) []string {
		var out []string
		for _, o := range in {
			out = append(out, fmt.Sprintf("%+v", o))
		}
		slices.Sort(out)
		return out
	})
	if diff := cmp.Diff(found, Manifests, byText); diff != "" {
		t.Error(diff)
	}

	for _, r := range granted {
		if !slices.Contains(Granted(), r) {
			t.Errorf("the manifests give %+v, which Granted does not have", r)
		}
	}

	if len(granted) != len(Granted()) {
		t.Errorf("the manifests give %d rights, Granted has %d", len(granted), len(Granted()))
	}
}

func FuzzVersion(f *testing.F) {
	for _, s := range []string{"v1.30.4-eks", "6.1.0-56-cloud-amd64", "1", "", "v", "99999999.1",
		"1..2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v := versionNumbers(s)
		if len(v) > 3 {
			t.Errorf("%q: %v", s, v)
		}
		for _, n := range v {
			if n < 0 || n > 999999 {
				t.Errorf("%q: %v", s, v)
			}
		}
	})
}

func FuzzKubeconfig(f *testing.F) {
	f.Add([]byte(proxy))
	f.Add([]byte("clusters: 7"))
	f.Fuzz(func(_ *testing.T, text []byte) {
		facts := good()
		facts.Proxy = text
		Judge(facts)
	})
}
