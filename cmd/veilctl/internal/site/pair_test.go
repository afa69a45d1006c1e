package site

import (
	"cmp"
	"net/netip"
	"os"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/site/path"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// aCluster returns a side with these ranges and one node inside them.
func aCluster(what, pods, nodes string, sites ...cluster.Site) *side {
	p, n := nettest.Prefixes(pods), nettest.Prefixes(nodes)
	return &side{End: path.End{What: what,
		Veild: config.Config{ClusterRanges: p, NodeRanges: n, Sites: sites},
		Nodes: []remote.Node{{Name: "node-1", Ready: true, Addrs: []netip.Addr{n[0].Addr().Next()},
			PodPrefixes: []netip.Prefix{netip.PrefixFrom(p[0].Addr(), 24)}}}}}
}

func aSite(name, pods, nodes string) cluster.Site {
	return cluster.Site{Name: name, PodRanges: nettest.Prefixes(pods),
		NodeRanges: nettest.Prefixes(nodes)}
}

// Each cluster is recognized by its ranges. What must be corrected first is in the error.
func TestPair(t *testing.T) {
	const podsA, nodesA, podsB, nodesB = "10.244.0.0/16", "192.0.2.0/24", "10.245.0.0/16",
		"198.51.100.0/24"
	west, east := aSite("west", podsA, nodesA), aSite("east", podsB, nodesB)
	other := aSite("south", "10.246.0.0/16", "203.0.113.0/24")
	for name, tt := range map[string]struct {
		a, b *side
		want []string // the error; nil if there is none
	}{
		"linked": {aCluster(thisCluster, podsA, nodesA, other, east),
			aCluster(otherCluster, podsB, nodesB, west), nil},
		"wider ranges": {aCluster(thisCluster, podsA, nodesA, aSite("east", "10.245.0.0/16",
			"198.51.0.0/16")), aCluster(otherCluster, podsB, nodesB, west), nil},
		"no entries": {aCluster(thisCluster, podsA, nodesA), aCluster(otherCluster, podsB, nodesB,
			other), []string{"the configuration of this cluster has no site",
			"- name: b\n    podRanges: [10.245.0.0/16]\n    nodeRanges: [198.51.100.0/24]\n",
			"the configuration of the other cluster has no site",
			"- name: a\n    podRanges: [10.244.0.0/16]\n"}},
		"an entry that is too narrow": {aCluster(thisCluster, podsA, nodesA, aSite("east",
			"10.245.0.0/17", nodesB)), aCluster(otherCluster, podsB, nodesB, west),
			[]string{"this cluster: site east lacks 10.245.0.0/16 in podRanges: correct it"}},
		"ranges of pods overlap": {aCluster(thisCluster, podsA, nodesA, east),
			aCluster(otherCluster, "10.244.128.0/17", nodesB, west),
			[]string{"overlap of 10.244.0.0/16 of this cluster and 10.244.128.0/17 of the other"}},
		"ranges of nodes overlap": {aCluster(thisCluster, podsA, nodesA, east),
			aCluster(otherCluster, podsB, "192.0.2.128/25", west),
			[]string{"overlap of 192.0.2.0/24 of this cluster and 192.0.2.128/25"}},
	} {
		t.Run(name, func(t *testing.T) {
			thereAs, hereAs, err := pair(tt.a, tt.b)
			if tt.want == nil && (err != nil || thereAs.Name != "east" || hereAs.Name != "west") {
				t.Errorf("%s, %s: %v", thereAs.Name, hereAs.Name, err)
			}
			for _, want := range tt.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v, want %q", err, want)
				}
			}
		})
	}

	far := aCluster(otherCluster, podsB, nodesB, west)
	far.Nodes[0].Addrs = nettest.Addrs("203.0.113.9")
	_, _, err := pair(aCluster(thisCluster, podsA, nodesA, east), far)
	if err == nil || !strings.Contains(err.Error(), "203.0.113.9, an address of node node-1") {
		t.Errorf("a node outside of nodeRanges: %v", err)
	}
	none := aCluster(otherCluster, podsB, nodesB, west)
	none.Veild.NodeRanges = nil
	if _, _, err := pair(aCluster(thisCluster, podsA, nodesA, east), none); err == nil ||
		!strings.Contains(err.Error(), "the other cluster has no nodeRanges") {
		t.Errorf("without nodeRanges: %v", err)
	}
	if got := list(nettest.Prefixes("10.0.0.0/8", "fd00::/48")); got != "10.0.0.0/8, 'fd00::/48'" {
		t.Error(got)
	}
}

// The address of the other API server must be one that nodes of this cluster reach.
func TestAddressOfTheOtherServer(t *testing.T) {
	for name, tt := range map[string]struct{ host, flag, want string }{
		"as in the kubeconfig": {"https://198.51.100.10:6443", "", ""},
		"a name":               {"https://api.example:6443", "", ""},
		"loopback":             {"https://127.0.0.1:6443", "", "loopback"},
		"localhost":            {"https://localhost:6443", "", "loopback"},
		"replaced":             {"https://127.0.0.1:6443", "https://198.51.100.10:6443", ""},
		"loopback on purpose":  {"https://198.51.100.10:6443", "https://127.0.0.1:7443", ""},
		"in clear":             {"http://198.51.100.10", "", "https://HOST:PORT"},
		"not a URL":            {"https://198.51.100.10", "198.51.100.10:6443", "https://HOST:PORT"},
	} {
		t.Run(name, func(t *testing.T) {
			there := aCluster(otherCluster, "10.245.0.0/16", "198.51.100.0/24")
			there.Cluster = &remote.Cluster{Config: &rest.Config{Host: tt.host,
				TLSClientConfig: rest.TLSClientConfig{CAData: []byte("ca")}}}
			s, err := (&linkFlags{server: tt.flag}).address(there)
			if tt.want == "" && (err != nil || string(s.CA) != "ca" ||
				s.Host != cmp.Or(tt.flag, tt.host)) {
				t.Errorf("%+v: %v", s, err)
			}
			if tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}

	there := &side{End: path.End{What: otherCluster,
		Cluster: &remote.Cluster{Config: &rest.Config{Host: "https://x:1"}}}}
	if _, err := (&linkFlags{}).address(there); err == nil ||
		!strings.Contains(err.Error(), "certificate-authority") {
		t.Errorf("without a CA: %v", err)
	}
}

// Credentials go to a new file that only its owner reads, and to nothing that exists.
func TestCredentialsInAFile(t *testing.T) {
	f := &linkFlags{file: t.TempDir() + "/b"}
	errtest.Must(t, f.fileIsNew())
	where, err := f.write(t.Context(), nil, "b", []byte("secret"))
	info, statErr := os.Stat(f.file)
	if err != nil || statErr != nil || info.Mode().Perm() != 0o600 || where != "file "+f.file {
		t.Errorf("%s, %v, %v, %v", where, info, err, statErr)
	}
	for _, file := range []string{f.file, "/dev/tty", "/dev/stdout"} {
		f.file = file
		if _, err := f.write(t.Context(), nil, "b", []byte("secret")); err == nil ||
			!strings.Contains(err.Error(), "exists") {
			t.Errorf("%s: %v", file, err)
		}
		if err := f.fileIsNew(); err == nil || !strings.Contains(err.Error(), "exists") {
			t.Errorf("%s before a token is made: %v", file, err)
		}
	}
}
