package trial

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// MaxRows bounds the rows of one pod in each list of a Result. maxNames bounds the bytes of the
// names of policies in these rows.
const MaxRows, maxNames = 32, 8 << 10

// Others is the peer of a row that counts connections of its pod beyond MaxRows.
const Others = "others"

// End names an address.
type End struct {
	// Name is the NAMESPACE/NAME of a pod, "node NAME", or the address.
	Name string
	// Unknown reports whether the address belongs to a pod and it is not known to which.
	Unknown bool
}

// Row counts connections of one pod with one peer that change in the same way.
type Row struct {
	Pod string `json:"pod"`
	// Direction is the direction whose policies decide, as the pod sees it.
	Direction string `json:"direction"`
	// Peer is the NAMESPACE/NAME of a pod, "node NAME", or an address.
	Peer        string `json:"peer"`
	PeerUnknown bool   `json:"peerUnknown,omitempty"`
	// Protocol and Port are the protocol and port of the server. They are empty in a row for
	// Others.
	Protocol string `json:"protocol,omitempty"`
	Port     uint16 `json:"port,omitempty"`
	// Connections counts known connections, Drops samples of dropped packets.
	Connections int `json:"connections,omitempty"`
	Drops       int `json:"drops,omitempty"`
	// Reason is the reason of the drop by the plan that denies.
	Reason string `json:"reason,omitempty"`
	// Policies are the policies that deny: those that isolate the pod, or the one that decides.
	// MorePolicies counts the policies that Policies does not name.
	Policies     []string `json:"policies,omitempty"`
	MorePolicies int      `json:"morePolicies,omitempty"`
}

// Result is the result of a Trial.
type Result struct {
	// Connections counts the known connections of the node's pods that were judged.
	Connections int `json:"connections"`
	// Same counts the connections that both plans allow, and Denied those that neither plan allows.
	Same   int `json:"same"`
	Denied int `json:"denied"`
	// Unknown counts connections with an End that is Unknown.
	Unknown int `json:"unknown"`
	// Drops counts the samples of packets that policies in force deny, and DropsDenied those among
	// them that the plan to try denies too.
	Drops       int `json:"drops"`
	DropsDenied int `json:"dropsDenied"`
	// Ends are connections that are allowed now and would be denied. Passes are denied now and
	// would be allowed. Pods are in the order of their names, and rows of a pod by their counts,
	// the largest first.
	Ends   []Row `json:"ends"`
	Passes []Row `json:"passes"`
}

// Config holds the inputs of a Trial.
type Config struct {
	// Before is the plan in force, After the plan to try.
	Before, After *policy.Plan
	// Own holds the addresses of this node.
	Own map[netip.Addr]bool
	// Name names an address.
	Name func(netip.Addr) End
	// Denying returns the names of policies that deny a flow in a direction, by Before or by After,
	// and how many others it does not name. Nil means that rows name none.
	Denying func(plan *policy.Plan, d policy.Direction, f policy.Flow) (names []string, more int)
}

// Trial judges connections by two plans. It is for one goroutine.
type Trial struct {
	o             Config
	before, after judge
	result        Result
	ends, passes  list
}

// judge are the functions of one plan.
type judge struct {
	known func(policy.Known) (policy.Verdict, policy.Flow, bool)
	flow  func(policy.Flow) policy.Verdict
}

// New returns a Trial.
func New(o Config) *Trial {
	of := func(p *policy.Plan) judge { return judge{p.JudgesKnown(o.Own), p.Judges()} }
	return &Trial{o: o, before: of(o.Before), after: of(o.After),
		ends: list{}, passes: list{}}
}

// Known judges a known connection.
func (t *Trial) Known(c policy.Known) {
	now, flow, ofPods := t.before.known(c)
	then, next, ofPodsThen := t.after.known(c)
	if !ofPods && !ofPodsThen {
		return
	}
	t.result.Connections++
	if t.o.Name(c.Client).Unknown || t.o.Name(c.Server).Unknown {
		t.result.Unknown++
	}

	switch {
	case now == policy.Allow && then == policy.Allow:
		t.result.Same++
	case now == policy.Allow:
		t.row(t.ends, t.o.After, t.after, next, then).Connections++
	case then == policy.Allow:
		t.row(t.passes, t.o.Before, t.before, flow, now).Connections++
	default:
		t.result.Denied++
	}
}

// Dropped judges a first packet that was dropped. It does not count a packet that the plan in force
// allows, because policies have changed since the drop.
func (t *Trial) Dropped(f policy.Flow) {
	now := t.before.flow(f)
	if now == policy.Allow {
		return
	}
	t.result.Drops++
	if t.after.flow(f) != policy.Allow {
		t.result.DropsDenied++
		return
	}
	t.row(t.passes, t.o.Before, t.before, f, now).Drops++
}

// Result returns what was found so far.
func (t *Trial) Result() Result {
	r := t.result
	r.Ends, r.Passes = t.ends.rows(), t.passes.rows()
	return r
}

// row returns the row of a flow that plan denies for the reason v.
func (t *Trial) row(l list, plan *policy.Plan, j judge, f policy.Flow, v policy.Verdict) *Row {
	d, own, peer := policy.Ingress, f.Dst, f.Src
	egress := f // judged without the ingress of its destination
	egress.ToPod = false
	if f.FromPod && j.flow(egress) != policy.Allow {
		d, own, peer = policy.Egress, f.Src, f.Dst
	}

	other := t.o.Name(peer)
	row := Row{Pod: t.o.Name(own).Name, Direction: d.String(), Peer: other.Name,
		PeerUnknown: other.Unknown, Protocol: f.Proto.Word(), Port: f.Port, Reason: v.String()}
	found, isNew := l.find(row)
	if isNew && t.o.Denying != nil {
		f.FromPod, f.ToPod = d == policy.Egress, d == policy.Ingress
		names, more := t.o.Denying(plan, d, f)
		l.name(found, names, more)
	}
	return found
}

// list holds the rows of pods by the pod's name.
type list map[string]*podRows

type podRows struct {
	rows map[identity]*Row
	// named counts the bytes of names of policies. Beyond maxNames, rows get no further names.
	named int
}

// name sets the policies of a row, within the bound of its pod.
func (l list) name(r *Row, names []string, more int) {
	of := l[r.Pod]
	for i, name := range names {
		if of.named += len(name); of.named > maxNames {
			names, more = names[:i], more+len(names)-i
			break
		}
	}
	r.Policies, r.MorePolicies = names, more
}

// identity is the key of a row among the rows of a pod.
type identity struct {
	direction, peer, protocol, reason string
	port                              uint16
}

// find returns the row with the identity of r, and adds it if it is missing. If the pod has MaxRows
// rows already, find returns the pod's row for Others. isNew reports whether it added a row with
// the identity of r.
func (l list) find(r Row) (found *Row, isNew bool) {
	id := identity{r.Direction, r.Peer, r.Protocol, r.Reason, r.Port}
	if l[r.Pod] == nil {
		l[r.Pod] = &podRows{rows: map[identity]*Row{}}
	}
	of := l[r.Pod].rows
	switch {
	case of[id] != nil:
		return of[id], false
	case len(of) >= MaxRows:
		id, r = identity{peer: Others}, Row{Pod: r.Pod, Peer: Others}
		if of[id] != nil {
			return of[id], false
		}
	}
	of[id] = &r
	return &r, r.Peer != Others
}

// rows returns all rows, sorted.
func (l list) rows() []Row {
	rows := []Row{}
	for _, of := range l {
		for _, r := range of.rows {
			rows = append(rows, *r)
		}
	}
	slices.SortFunc(rows, func(a, b Row) int {
		return cmp.Or(strings.Compare(a.Pod, b.Pod),
			cmp.Compare(b.Connections+b.Drops, a.Connections+a.Drops),
			strings.Compare(a.Direction+a.Peer+a.Protocol+a.Reason,
				b.Direction+b.Peer+b.Protocol+b.Reason), cmp.Compare(a.Port, b.Port))
	})
	return rows
}
