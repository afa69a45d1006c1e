package plan

import (
	"fmt"
	"net/netip"
	"time"
)

// FlapLimit is how long the link between nodes may be down before the node is closed to new pods.
// Carrier losses, DHCP clients and restarts of network managers remove an address or a route for
// seconds. Closing the node at once would be wrong: runtimes that call CNI STATUS then make the
// Node NotReady, which evicts its pods.
const FlapLimit = time.Minute

// linkInputs is the part of inputs that depends on the link between nodes.
type linkInputs struct {
	underlayMTU            int
	wideMTU                string
	localAddrs, otherAddrs []netip.Addr
}

// away reports whether the link between nodes is down: no route or no address was found.
func (in Inputs) away() bool { return in.UnderlayMTU == 0 || len(in.LocalAddrs) == 0 }

func (in Inputs) link() linkInputs {
	return linkInputs{in.UnderlayMTU, in.WideMTU, in.LocalAddrs, in.OtherAddrs}
}

func (in *Inputs) setLink(l linkInputs) {
	in.UnderlayMTU, in.WideMTU, in.LocalAddrs, in.OtherAddrs = l.underlayMTU, l.wideMTU,
		l.localAddrs, l.otherAddrs
}

// Flap debounces the link between nodes. The zero value is ready for use.
type Flap struct {
	fit   *linkInputs // inputs of the last link without a problem; nil if there was none
	since time.Time   // when the link was lost; zero while it is up
	Held  bool        // the last decision was made with fit instead of the actual link
}

// Hold returns in and d, the decision for in, while the link is up. While the link is down, but for
// at most FlapLimit, it returns the decision for the last fit link. So the marker stays and no MTU
// changes. After that, or if no link was ever fit, it returns d. A link that is up but too narrow
// does not count as a flap, because packets of pods do not fit it.
func (f *Flap) Hold(now time.Time, in Inputs, d Decision) (Inputs, Decision) {
	f.Held = false
	if d.linkProblem == "" {
		// Without tunnels, Decide has not checked the link.
		if d.Self != nil {
			link := in.link()
			f.fit, f.since = &link, time.Time{}
		}
		return in, d
	}
	if f.fit == nil || !in.away() {
		return in, d
	}
	if f.since.IsZero() {
		f.since = now
	}
	if now.Sub(f.since) >= FlapLimit {
		return in, d
	}

	f.Held = true
	why := d.linkProblem
	in.setLink(*f.fit)
	d = Decide(in)
	d.Notes = append(d.Notes,
		fmt.Sprintf("%s; if this lasts, the node refuses new pods in %s",
			why, (FlapLimit-now.Sub(f.since)).Round(time.Second)))
	return in, d
}
