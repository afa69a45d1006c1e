package cluster

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/kube/veilnode"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// Report is the output of status for a cluster; fields are added, never renamed.
type Report struct {
	// Well reports whether all nodes are well.
	Well  bool         `json:"well"`
	Nodes []nodeReport `json:"nodes"`
}

// nodeReport is the output of status for one node.
type nodeReport struct {
	Node string `json:"node"`
	Well bool   `json:"well"`
	// Answered reports whether the node's veild answered. Without its answer, the fields below come
	// from the API server and from other nodes, or are empty.
	Answered bool `json:"answered"`
	// Ready reports whether veild accepts pods. It is not the Node's condition.
	Ready   bool   `json:"ready"`
	Version string `json:"version,omitempty"`
	// KeyEpoch and PublicKey describe the node's newest published key.
	KeyEpoch  *uint32 `json:"keyEpoch,omitempty"`
	PublicKey string  `json:"publicKey,omitempty"`
	// Backend is kernel or userspace, or both.
	Backend string `json:"backend,omitempty"`
	// MTU is the pods' MTU in bytes.
	MTU int `json:"mtu,omitempty"`
	// Peers counts the other nodes that the node knows. PeersUp counts the peers in the states up
	// and idle.
	Peers   int `json:"peers"`
	PeersUp int `json:"peersUp"`
	// SeenBy counts the nodes that received packets from this node in the last three minutes.
	SeenBy int `json:"seenBy"`
	Pods   int `json:"pods"`
	// PolicyRevision is the revision of the policies in force. It is empty if no policies are
	// enforced, or if the revision is unknown.
	PolicyRevision string `json:"policyRevision,omitempty"`
	// Blocked counts packets that the guard dropped.
	Blocked uint64 `json:"blocked"`
	// Problems are sentences. A node without problems is well.
	Problems []string `json:"problems,omitempty"`
	// Notes are remarks that do not count as problems.
	Notes []string `json:"notes,omitempty"`
	// Status is the full answer of the node's veild.
	Status *telemetry.Status `json:"status,omitempty"`
}

// Assess builds the report of a cluster, with nodes sorted by name. It is pure.
func Assess(seen []NodeSeen) Report {
	seenBy := map[string]int{}
	for _, n := range seen {
		if n.status == nil {
			continue
		}
		for name := range peersIn(*n.status, telemetry.PeerUp) {
			seenBy[name]++
		}
	}

	r := Report{Well: len(seen) > 0, Nodes: []nodeReport{}}
	for _, n := range seen {
		row := nodeReport{Node: n.Name, SeenBy: seenBy[n.Name], Status: n.status}
		row.readClaim(n)
		if n.status != nil {
			row.readStatus(n)
		} else {
			row.explainSilence(n)
		}
		if n.kubelet != "" {
			row.Problems = append(row.Problems, n.kubelet)
		}
		row.Well = len(row.Problems) == 0
		r.Well = r.Well && row.Well
		r.Nodes = append(r.Nodes, row)
	}

	slices.SortFunc(r.Nodes, func(a, b nodeReport) int { return cmp.Compare(a.Node, b.Node) })
	return r
}

// peersIn returns the names of the peers that are in one of the states on any device. Without
// states it returns all peers.
func peersIn(s telemetry.Status, states ...telemetry.PeerState) map[string]bool {
	up := map[string]bool{}
	for _, p := range s.Peers {
		if len(states) == 0 || slices.Contains(states, p.State) {
			up[p.Name] = true
		}
	}
	return up
}

func (r *nodeReport) readClaim(n NodeSeen) {
	if n.claim == nil {
		return
	}
	claim, err := veilnode.Decode(n.claim)
	if err != nil {
		r.Problems = append(r.Problems, fmt.Sprintf("its VeilNode is malformed: %v", err))
		return
	}
	newest := claim.Keys[len(claim.Keys)-1]
	r.KeyEpoch, r.PublicKey = &newest.Epoch, newest.Public.String()
}

func (r *nodeReport) readStatus(n NodeSeen) {
	s := n.status
	r.Answered, r.Ready, r.Version, r.Pods, r.MTU = true, s.Ready, s.Version, s.Pods, s.MTU.Pod
	if !s.Ready {
		r.Problems = append(r.Problems, "it is not ready for pods: it waits for "+
			strings.Join(s.NotReady, ", "))
	}

	for _, p := range s.Problems {
		r.Problems = append(r.Problems, strings.ReplaceAll(p, "\n", "; "))
	}

	if !s.Guard.InForce {
		r.Problems = append(r.Problems, "its guard is not in force")
	}
	if n.claim == nil {
		r.Problems = append(r.Problems, "it has published no key, so other nodes cannot reach it")
	}

	var kinds []string
	published := r.PublicKey == ""
	for _, d := range s.Devices {
		kinds = append(kinds, d.Kind)
		published = published || d.PublicKey.String() == r.PublicKey ||
			d.PublicKey == (wgkey.Public{}) // There is no key to compare.
	}
	if !published && len(s.Devices) > 0 {
		r.Problems = append(r.Problems, "the public keys of its tunnel and of its VeilNode differ")
	}

	slices.Sort(kinds)
	r.Backend = strings.Join(slices.Compact(kinds), "+")
	r.PeersUp = len(peersIn(*s, telemetry.PeerUp, telemetry.PeerIdle))
	r.Peers = len(peersIn(*s))
	r.readPolicy(s.Policy)
	r.readScrapes(s)

	r.Blocked = s.Guard.Blocked()
}

// readPolicy adds notes about temporary states of policies, such as a node that does not enforce
// the newest revision yet.
func (r *nodeReport) readPolicy(p *telemetry.Policy) {
	if p == nil {
		return
	}
	r.PolicyRevision = p.Revision
	switch {
	case !p.Listed:
		r.Notes = append(r.Notes, "policies: veild has not listed them since it started; the "+
			"earlier policies stay in force")
	case p.Told != p.Revision:
		r.Notes = append(r.Notes, fmt.Sprintf("policies: received revision %s, in force is %s",
			verb.OrDash(p.Told), verb.OrDash(p.Revision)))
	}
	if p.Pending > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("policies: %d pods are mute until their policies "+
			"are known", p.Pending))
	}
}

// readScrapes adds notes about what Prometheus and veilctl drops lack.
func (r *nodeReport) readScrapes(s *telemetry.Status) {
	if d := s.DropSamples; d != nil && d.Problem != "" {
		r.Notes = append(r.Notes, "some dropped packets are only counted, not sampled: "+d.Problem)
	}
	if n := s.MetricsRefused; n > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("metrics: %d requests of other hosts were refused: "+
			"run Prometheus in a pod, since other answers would cross the network in clear", n))
	}
}

// explainSilence adds the reason why there is no answer of the node's veild.
func (r *nodeReport) explainSilence(n NodeSeen) {
	switch {
	case n.Pod == "" && n.claim != nil && r.SeenBy > 0:
		r.Notes = append(r.Notes,
			"no pod of veild, but peers hear from it, so its veild runs outside of a pod: run "+
				"veilctl status on the node")
	case n.Pod == "" && !n.linux:
		r.Problems = append(r.Problems, "no pod of veild: the node lacks the label "+
			"kubernetes.io/os: linux, which the DaemonSet selects")
	case n.Pod == "":
		r.Problems = append(r.Problems, "no pod of veild: see kubectl -n kube-system describe "+
			"daemonset veild")
	case n.PodWhy != "":
		r.Problems = append(r.Problems, n.PodWhy)
		if n.said != "" {
			r.Problems = append(r.Problems,
				"last message of veild: "+strings.ReplaceAll(n.said, "\n", "; "))
		}
	default:
		r.Problems = append(r.Problems,
			"veild does not answer: "+strings.ReplaceAll(n.err, "\n", "; "))
	}
}

// Print writes a line for each node, and the problems below the table.
func (r Report) Print(w io.Writer) error {
	var rows [][]string
	well := 0
	for _, n := range r.Nodes {
		if n.Well {
			well++
		}
		rows = append(rows, n.row())
	}
	if err := verb.Table(w, "NODE | READY | VERSION | KEY | TUNNEL | MTU | PEERS | PODS | "+
		"POLICIES | BLOCKED", rows); err != nil {
		return err
	}
	fmt.Fprintln(w)
	for _, n := range r.Nodes {
		for _, p := range n.Problems {
			fmt.Fprintf(w, "%s: %s\n", n.Node, p)
		}
		for _, p := range n.Notes {
			fmt.Fprintf(w, "%s: %s\n", n.Node, p)
		}
	}
	showRevisions(w, r)
	_, err := fmt.Fprintf(w, "%d of %d nodes are well\n", well, len(r.Nodes))
	return err
}

// showRevisions prints how many nodes enforce which policies, unless all enforce the same.
func showRevisions(w io.Writer, r Report) {
	nodes := map[string]int{}
	for _, n := range r.Nodes {
		if n.PolicyRevision != "" {
			nodes[n.PolicyRevision]++
		}
	}
	if len(nodes) < 2 {
		return
	}
	var parts []string
	for _, revision := range slices.Sorted(maps.Keys(nodes)) {
		parts = append(parts, fmt.Sprintf("%d enforce revision %s", nodes[revision], revision))
	}
	fmt.Fprintf(w, "nodes enforce different policies: %s\n",
		strings.Join(parts, ", "))
}

func (n nodeReport) row() []string {
	key := "-"
	if n.KeyEpoch != nil {
		key = fmt.Sprintf("%d %.8s", *n.KeyEpoch, n.PublicKey)
	}
	if !n.Answered {
		return []string{n.Node, "?", "-", key, "-", "-", fmt.Sprintf("seen by %d", n.SeenBy), "-",
			"-", "-"}
	}
	ready := "yes"
	if !n.Ready {
		ready = "NO"
	}
	return []string{
		n.Node, ready, verb.OrDash(n.Version), key, verb.OrDash(n.Backend), fmt.Sprint(n.MTU),
		fmt.Sprintf("%d/%d", n.PeersUp, n.Peers), fmt.Sprint(n.Pods),
		verb.OrDash(n.PolicyRevision), fmt.Sprint(n.Blocked),
	}
}
