package policy

import "net/netip"

// Known is a connection that conntrack or the fast path knows, by its real ends. Port is the port
// of Server and ClientPort the port of Client; both are 0 if the protocol has no ports.
type Known struct {
	Client, Server   netip.Addr
	Proto            Proto
	Port, ClientPort uint16
	// Midstream reports whether it is not known which end opened the connection.
	Midstream bool
}

// JudgesKnown returns a function that judges whether a known connection of the plan's pods stays or
// ends when the plan comes in force. own holds the addresses of this node.
//
// The function returns the flow that decided, as its opener sent it. Policies of this node do not
// judge connections that involve no pod of the plan, or that the node itself opened. For these the
// function returns Allow and ofPods is false. If it is not known which end opened a connection, the
// plan has to allow it from both ends.
func (p *Plan) JudgesKnown(own map[netip.Addr]bool) func(Known) (v Verdict, f Flow, ofPods bool) {
	attached := p.Attached()
	judge := p.Judges()
	return func(c Known) (Verdict, Flow, bool) {
		f := Flow{Src: c.Client, Dst: c.Server, Proto: c.Proto, Port: c.Port,
			FromPod: attached[c.Client], ToPod: attached[c.Server], ToNode: own[c.Server]}
		if own[f.Src] || !f.FromPod && !f.ToPod {
			return Allow, f, false
		}
		if v := judge(f); v != Allow || !c.Midstream || own[f.Dst] {
			return v, f, true
		}
		back := Flow{Src: f.Dst, Dst: f.Src, Proto: f.Proto, Port: c.ClientPort, FromPod: f.ToPod,
			ToPod: f.FromPod}
		if v := judge(back); v != Allow {
			return v, back, true
		}
		return Allow, f, true
	}
}

// Attached returns the addresses of the plan's pods.
func (p *Plan) Attached() map[netip.Addr]bool {
	attached := map[netip.Addr]bool{}
	for _, m := range p.Members {
		for _, a := range m.Addrs {
			attached[a] = true
		}
	}
	return attached
}
