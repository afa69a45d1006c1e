package cluster

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// claimText is the spec of a VeilNode.
func claimText(key string) []byte {
	return []byte(`{"keys":[{"epoch":2,"publicKey":"` + key + `"}]}`)
}

const (
	publishedKey = "mJLSJPVW9uOCfdbDrH0dNJ3x/YH10Ht548IAg99J2Xw="
	otherKey     = "tdzEaXHPf+yh631bk4RMKCQw9Bj6NKJaJUkGb+Rw/lA="
)

// wellNode returns a node without problems that had a handshake with each of peers.
func wellNode(t *testing.T, name, key string, peers ...string) NodeSeen {
	t.Helper()
	var public wgkey.Public
	errtest.Must(t, public.UnmarshalText([]byte(key)))
	s := &telemetry.Status{
		Node: name, Version: "v0.1.0", Ready: true, Pods: 3, Started: time.Unix(0, 0),
		Devices: []telemetry.Device{{Name: "veil0", Kind: "kernel", PublicKey: public, Port: 51820,
			MTU: 1440, Up: true}},
		Guard: telemetry.Guard{InForce: true, Links: []string{"eth0"},
			Drops: []telemetry.Drop{{Number: 2, Name: "dst_in_range", Packets: 5}}},
		MTU: telemetry.MTU{Underlay: 1500, Pod: 1440},
	}
	for _, p := range peers {
		s.Peers = append(s.Peers, telemetry.Peer{Name: p, State: telemetry.PeerUp, Device: "veil0"})
	}
	return NodeSeen{Name: name, linux: true, claim: claimText(key), Pod: "veild-" + name, status: s}
}

func TestClusterTable(t *testing.T) {
	host := NodeSeen{Name: "control", claim: claimText(publishedKey)}
	silent := NodeSeen{Name: "node-3", linux: true, Pod: "veild-c",
		PodWhy:  "container veild waits, CrashLoopBackOff",
		said:    "veild: clusterRanges: no range is given",
		kubelet: "its Node is not Ready: KubeletNotReady: cni plugin not initialized"}
	broken := wellNode(t, "node-2", otherKey, "node-1", "control")
	broken.status.Ready, broken.status.NotReady = false, []string{"first apply done"}
	broken.status.Peers[0].State = telemetry.PeerSilent
	broken.status.Problems = broken.status.Faults(time.Now())
	r := Assess([]NodeSeen{silent, broken, wellNode(t, "node-1", publishedKey, "control", "node-2"),
		host})
	var out bytes.Buffer
	errtest.Must(t, r.Print(&out))
	const want = `NODE     READY  VERSION  KEY         TUNNEL  MTU   PEERS      PODS  POLICIES  BLOCKED
control  ?      -        2 mJLSJPVW  -       -     seen by 2  -     -         -
node-1   yes    v0.1.0   2 mJLSJPVW  kernel  1440  2/2        3     -         5
node-2   NO     v0.1.0   2 tdzEaXHP  kernel  1440  1/2        3     -         5
node-3   ?      -        -           -       -     seen by 0  -     -         -

control: no pod of veild, but peers hear from it, so its veild runs outside of a pod: run veilctl status on the node
node-2: it is not ready for pods: it waits for first apply done
node-2: peer node-1 has not answered for 0s: it is down, or the network drops UDP
node-3: container veild waits, CrashLoopBackOff
node-3: last message of veild: veild: clusterRanges: no range is given
node-3: its Node is not Ready: KubeletNotReady: cni plugin not initialized
2 of 4 nodes are well
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
	if r.Well {
		t.Error("the cluster is said to be well")
	}
}

func TestClusterStatusSaysWhichNodeEnforcesWhichPolicies(t *testing.T) {
	show := func(policies ...*telemetry.Policy) (string, bool) {
		t.Helper()
		var seen []NodeSeen
		for i, p := range policies {
			n := wellNode(t, fmt.Sprintf("node-%d", i+1), publishedKey)
			n.status.Policy = p
			seen = append(seen, n)
		}
		r := Assess(seen)
		var out bytes.Buffer
		errtest.Must(t, r.Print(&out))
		return out.String(), r.Well
	}
	in := func(told, revision string, pending int) *telemetry.Policy {
		return &telemetry.Policy{Listed: true, Told: told, Revision: revision, Pending: pending}
	}

	got, well := show(in("aa11", "aa11", 0), in("bb22", "aa11", 2), in("bb22", "bb22", 0),
		&telemetry.Policy{}, in("bb22", "bb22", 0))
	const want = `NODE    READY  VERSION  KEY         TUNNEL  MTU   PEERS  PODS  POLICIES  BLOCKED
node-1  yes    v0.1.0   2 mJLSJPVW  kernel  1440  0/0    3     aa11      5
node-2  yes    v0.1.0   2 mJLSJPVW  kernel  1440  0/0    3     aa11      5
node-3  yes    v0.1.0   2 mJLSJPVW  kernel  1440  0/0    3     bb22      5
node-4  yes    v0.1.0   2 mJLSJPVW  kernel  1440  0/0    3     -         5
node-5  yes    v0.1.0   2 mJLSJPVW  kernel  1440  0/0    3     bb22      5

node-2: policies: received revision bb22, in force is aa11
node-2: policies: 2 pods are mute until their policies are known
node-4: policies: veild has not listed them since it started; the earlier policies stay in force
nodes enforce different policies: 2 enforce revision aa11, 2 enforce revision bb22
5 of 5 nodes are well
`
	if d := cmp.Diff(want, got); d != "" || !well {
		t.Errorf("well %v\n%s", well, d)
	}
	same := in("aa11", "aa11", 0)
	if got, _ := show(same, same); strings.Contains(got, "different") {
		t.Errorf("nodes that enforce the same:\n%s", got)
	}
}

func TestAssess(t *testing.T) {
	for name, tt := range map[string]struct {
		change  func(n *NodeSeen)
		problem string // "" for a node that is well
	}{
		"as it should be": {func(*NodeSeen) {}, ""},
		"an old key": {func(n *NodeSeen) { n.claim = claimText(otherKey) },
			"and of its VeilNode differ"},
		"no VeilNode": {func(n *NodeSeen) { n.claim = nil }, "published no key"},
		"a malformed VeilNode": {func(n *NodeSeen) { n.claim = []byte(`{"keys":[]}`) },
			"malformed"},
		"no guard": {func(n *NodeSeen) { n.status.Guard.InForce = false },
			"guard is not in force"},
		"a problem of its own": {func(n *NodeSeen) {
			n.status.Problems = []string{"the tunnel\ncannot"}
		}, "the tunnel; cannot"},
		"no answer": {func(n *NodeSeen) { n.status, n.err = nil, "no answer in time" },
			"veild does not answer: no answer in time"},
		"no pod": {func(n *NodeSeen) { n.status, n.Pod = nil, "" },
			"describe daemonset veild"},
		"a node that is not ours": {func(n *NodeSeen) {
			n.status, n.Pod, n.claim, n.linux = nil, "", nil, false
		}, "kubernetes.io/os"},
	} {
		t.Run(name, func(t *testing.T) {
			n := wellNode(t, "node-1", publishedKey, "node-9")
			tt.change(&n)
			got := Assess([]NodeSeen{n}).Nodes[0]
			if got.Well != (tt.problem == "") ||
				!strings.Contains(strings.Join(got.Problems, "\n"), tt.problem) {
				t.Errorf("well %v, problems %q, want %q", got.Well, got.Problems, tt.problem)
			}
		})
	}

	if Assess(nil).Well {
		t.Error("a cluster without nodes is said to be well")
	}
}

// Samples and scrapes that are missing are remarks: any host on the network can send a request that
// is refused.
func TestMissingSamplesAndScrapesAreNotes(t *testing.T) {
	n := wellNode(t, "node-1", publishedKey)
	n.status.DropSamples = &telemetry.DropSamples{Problem: "no module nfnetlink_log"}
	n.status.MetricsRefused = 7
	got := Assess([]NodeSeen{n}).Nodes[0]
	text := strings.Join(got.Notes, "\n")
	if !got.Well || !strings.Contains(text, "only counted, not sampled: no module nfnetlink_log") ||
		!strings.Contains(text, "metrics: 7 requests of other hosts were refused: run Prometheus") {
		t.Errorf("well %t, notes %q", got.Well, got.Notes)
	}
}
