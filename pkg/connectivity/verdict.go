package connectivity

import (
	"github.com/kubeveil/kubeveil/pkg/leak"
)

// Verdict is the result of observing a flow.
type Verdict string

// Verdicts that the documentation promises for some kind of flow.
const (
	// Encrypted means that the payload came back and was not seen in clear, but tunnel packets
	// were.
	Encrypted Verdict = "encrypted"
	// Refused means that the payload did not come back and was not seen in clear.
	Refused Verdict = "refused"
	// Outside means that the payload left the cluster in clear, which is promised.
	Outside Verdict = "outside the cluster"
	// HostToHost means that the payload went in clear between the nodes' own addresses, which is
	// promised. The packets have no pod's address.
	HostToHost Verdict = "host to host, in clear"
	// Stays means that both ends are on one node, and the payload came back and was on no uplink.
	Stays Verdict = "stays on the node"
)

// Verdicts that are never promised.
const (
	// InClear means that the payload was seen in clear.
	InClear Verdict = "IN CLEAR"
	// Unseen means that the payload came back, but was not seen in clear, and the tunnel packets
	// that were seen are too few to have carried it.
	Unseen Verdict = "UNSEEN"
	// Lost means that frames came too fast to be read, and that the frames that were read did not
	// hold the payload.
	Lost Verdict = "FRAMES LOST"
)

// Seen counts the frames that a node's uplinks carried during a flow.
type Seen struct {
	Frames uint64 `json:"frames"`
	// Tunnel counts WireGuard frames between known nodes.
	Tunnel uint64 `json:"tunnel"`
	// Clear counts frames that held the payload.
	Clear uint64 `json:"clear"`
	// Dropped counts frames that were not read.
	Dropped uint64 `json:"dropped"`
	// Examples are texts that describe some of the frames in Clear.
	Examples []string `json:"examples,omitempty"`
}

// newSeen converts a result of the leak oracle, which must have searched for the canary of one flow
// only.
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
	// answered is how many messages came back. delivered is true only if all of them did.
	answered  int
	delivered bool
	// near is from the sender's node, far from the receiver's node. far is nil if the receiver's
	// node does not count.
	near Seen
	far  *Seen
}

// judge returns the verdict on a flow for which the verdict promised is documented.
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
		// A message and its answer are at least one frame each. With fewer tunnel frames than that,
		// the messages did not go through the tunnel.
		if s.Tunnel < 2*uint64(o.answered) {
			return Unseen
		}
	}

	return Encrypted
}
