package suggest

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Bounds of a Seen.
const (
	// MaxRows bounds the rows of one Seen.
	MaxRows = 4096
	// MaxPeers bounds the rows of one subject in one direction.
	MaxPeers = 128
	// maxBytes bounds the approximate size of one Seen. Labels repeat in each row, and a pod may
	// have 16 KiB of them.
	maxBytes = 8 << 20
)

// Pods are the pods of one namespace that have the same labels. Labels that differ between the pods
// of one workload do not count.
type Pods struct {
	Namespace string            `json:"namespace"`
	Labels    map[string]string `json:"labels,omitempty"`
	// Example is the name of one of them.
	Example string `json:"example"`
	// Others counts other pods of the namespace that these labels select. Other is the name of
	// one of them.
	Others int    `json:"others,omitempty"`
	Other  string `json:"other,omitempty"`
}

// volatile holds keys of labels that controllers of workloads write, and that differ between pods
// or revisions. An entry that ends in "/" is a prefix of keys.
var volatile = []string{"pod-template-hash", "controller-revision-hash", "pod-template-generation",
	"controller-uid", "job-name", "apps.kubernetes.io/", "batch.kubernetes.io/",
	"statefulset.kubernetes.io/"}

// Stable returns the labels without those that differ between pods of one workload.
func Stable(labels map[string]string) map[string]string {
	stable := maps.Clone(labels)
	maps.DeleteFunc(stable, func(key, _ string) bool {
		return slices.ContainsFunc(volatile, func(v string) bool {
			return key == v || strings.HasSuffix(v, "/") && strings.HasPrefix(key, v)
		})
	})
	return stable
}

// Key returns a text that is equal for equal namespaces and labels.
func (p Pods) Key() string {
	parts := []string{p.Namespace}
	for _, k := range slices.Sorted(maps.Keys(p.Labels)) {
		parts = append(parts, k+"="+p.Labels[k])
	}
	return strings.Join(parts, "\n")
}

// size returns about how many bytes p takes in a row.
func (p Pods) size() int {
	n := 128 + len(p.Namespace) + len(p.Example) + len(p.Other)
	for k, v := range p.Labels {
		n += len(k) + len(v) + 8
	}
	return n
}

// Peer is the other end of connections: Pods if it is not nil, otherwise an address.
type Peer struct {
	Pods *Pods  `json:"pods,omitempty"`
	Addr string `json:"addr,omitempty"`
	// Node is the node that has the address. It is empty if no node has it.
	Node string `json:"node,omitempty"`
	// Unknown reports whether the address belongs to a pod and it is not known to which.
	Unknown bool `json:"unknown,omitempty"`
}

func (p Peer) key() string {
	if p.Pods != nil {
		return "pods " + p.Pods.Key()
	}
	return "addr " + p.Addr
}

// Row counts the connections of pods with one peer, protocol and port.
type Row struct {
	Subject Pods `json:"subject"`
	// Egress reports whether the pods opened them.
	Egress bool `json:"egress,omitempty"`
	Peer   Peer `json:"peer"`
	// Protocol is TCP, UDP or SCTP, and Port the port of the server.
	Protocol    string `json:"protocol"`
	Port        uint16 `json:"port"`
	Connections int    `json:"connections"`
}

func (r Row) key() string {
	return strings.Join([]string{r.Subject.Key(), map[bool]string{false: "in", true: "out"}[r.Egress],
		r.Peer.key(), r.Protocol, strconv.Itoa(int(r.Port))}, "\n\n")
}

// Seen holds the connections of a namespace's pods that one node knows.
type Seen struct {
	Node string `json:"node"`
	Rows []Row  `json:"rows"`
	// LeftOut counts connections beyond the bounds, Other those of protocols that NetworkPolicy
	// does not know, and Denied those that policies deny.
	LeftOut int `json:"leftOut,omitempty"`
	Other   int `json:"other,omitempty"`
	Denied  int `json:"denied,omitempty"`
}

// Collector makes a Seen. The zero value is ready.
type Collector struct {
	rows  map[string]*Row
	peers map[string]int
	bytes int
	Seen
}

// Add counts one connection.
func (c *Collector) Add(r Row) {
	if c.rows == nil {
		c.rows, c.peers = map[string]*Row{}, map[string]int{}
	}
	key := r.key()
	if known := c.rows[key]; known != nil {
		known.Connections++
		return
	}
	subject := r.Subject.Key() + map[bool]string{false: "in", true: "out"}[r.Egress]
	bytes := r.Subject.size()
	if r.Peer.Pods != nil {
		bytes += r.Peer.Pods.size()
	}
	if len(c.rows) >= MaxRows || c.peers[subject] >= MaxPeers || c.bytes+bytes > maxBytes {
		c.LeftOut++
		return
	}
	c.bytes += bytes
	r.Connections = 1
	c.rows[key] = &r
	c.peers[subject]++
}

// Result returns the counted rows, sorted.
func (c *Collector) Result() Seen {
	s := c.Seen
	s.Rows = sorted(c.rows)
	return s
}

func sorted(rows map[string]*Row) []Row {
	out := []Row{}
	for _, key := range slices.Sorted(maps.Keys(rows)) {
		out = append(out, *rows[key])
	}
	return out
}

// merge adds the rows of several nodes.
func merge(seen []Seen) []Row {
	rows := map[string]*Row{}
	for _, s := range seen {
		for _, r := range s.Rows {
			if known := rows[r.key()]; known != nil {
				known.Connections += r.Connections
				known.Subject.Others = max(known.Subject.Others, r.Subject.Others)
				known.Subject.Other = cmp.Or(known.Subject.Other, r.Subject.Other)
				continue
			}
			rows[r.key()] = &r
		}
	}
	return sorted(rows)
}
