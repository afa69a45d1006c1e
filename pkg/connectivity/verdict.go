package connectivity

import (
	"github.com/kubeveil/kubeveil/pkg/leak"
)

// Verdict is the result of observing a flow.
type Verdict string

// Verdicts that a kind of flow may promise.
const (
	// Encrypted: it came back, its payload was not seen in clear, and tunnel packets were.
	Encrypted Verdict = "encrypted"
	// Refused: it did not come back, and its payload was not seen in clear.
	Refused Verdict = "refused"
	// Outside: it left the cluster, in clear.
	Outside Verdict = "outside the cluster"
	// HostToHost: it went between two hosts' own addresses, in clear; no pod's address was on it.
	HostToHost Verdict = "host to host, in clear"
	// Stays: both ends are on one node, and its payload was on no uplink.
	Stays Verdict = "stays on the node"
)

// Verdicts that nothing promises.
const (
	// InClear: its payload was seen in clear.
	InClear Verdict = "IN CLEAR"
	// Unseen: it came back, but neither its payload nor tunnel packets enough for it were seen.
	Unseen Verdict = "UNSEEN"
	// Lost: frames came too fast to be read, and the frames that were read did not hold the
	// payload.
	Lost Verdict = "FRAMES LOST"
)

// Seen is what a node's uplinks carried during a flow, in frames.
type Seen struct {
	Frames uint64 `json:"frames"`
	// Tunnel counts WireGuard frames between known nodes.
	Tunnel uint64 `json:"tunnel"`
	// Clear counts frames that held the payload.
	Clear uint64 `json:"clear"`
	// Dropped counts frames that were not read.
	Dropped uint64 `json:"dropped"`
	// Examples of Clear frames, for people.
	Examples []string `json:"examples,omitempty"`
}

// newSeen converts a result of the oracle. The oracle must have searched only for this flow's
// canary.
func newSeen(r leak.Result) Seen {
	s := Seen{Frames: r.Frames, Tunnel: r.Kinds[leak.Tunnel], Clear: r.Kinds[leak.LeakCanary],
		Dropped: r.Dropped}
	for _, e := range r.Examples {
		if e.Kind == leak.LeakCanary {
			s.Examples = append(s.Examples, e.Link+": "+e.Detail)
		}
	}
	return s
}

// observation holds what is known about a flow after its end.
type observation struct {
	// answered is how many messages came back; all of them or none count as delivered.
	answered  int
	delivered bool
	// near is the sender's node. far is the receiver's node if it is read, too.
	near Seen
	far  *Seen
}

// judge returns what happened to a flow of a kind that promises promised.
func judge(promised Verdict, o observation) Verdict {
	all := []Seen{o.near}
	if o.far != nil {
		all = append(all, *o.far)
	}

	var clear, dropped uint64
	for _, s := range all {
		clear += s.Clear
		dropped += s.Dropped
	}

	switch {
	case clear > 0 && o.delivered && (promised == Outside || promised == HostToHost):
		return promised
	case clear > 0:
		return InClear
	case dropped > 0:
		return Lost
	case !o.delivered:
		return Refused
	case promised == Stays:
		return Stays
	}

	for _, s := range all {
		// A message and its answer are a frame each at the least, so that what else is in the
		// tunnel does not easily stand in for them.
		if s.Tunnel < 2*uint64(o.answered) {
			return Unseen
		}
	}

	return Encrypted
}
