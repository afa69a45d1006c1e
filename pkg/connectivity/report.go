package connectivity

import (
	"fmt"
	"io"
	"net/netip"
	"strings"
)

// Report is the result of a walk.
type Report struct {
	// Nodes are the names of node A and node B.
	Nodes []string `json:"nodes"`
	Flows []Flow   `json:"flows"`
	// Skipped lists the kinds of flow and the families that could not be tested in this cluster.
	Skipped []Skip `json:"skipped,omitempty"`
}

// Flow describes what was observed about one flow.
type Flow struct {
	Class string `json:"class"`
	Way
	From string         `json:"from"`
	To   netip.AddrPort `json:"to"`
	// Promised is the verdict that Kubeveil's documentation promises for the class.
	Promised  Verdict `json:"promised"`
	Verdict   Verdict `json:"verdict"`
	OK        bool    `json:"ok"`
	Delivered bool    `json:"delivered"`
	// Error is the reason why the flow was not delivered. "" means that it was.
	Error string `json:"error,omitempty"`
	// Seen holds what the uplinks of each node carried, by the node's name.
	Seen map[string]Seen `json:"seen"`
}

// Skip names a kind of flow or a family that was not tested, and the reason.
type Skip struct {
	What string `json:"what"`
	Why  string `json:"why"`
}

// OK reports whether there were flows and every one was as promised.
func (r Report) OK() bool { return len(r.Flows) > 0 && len(r.Wrong()) == 0 }

// Wrong returns the flows that were not as promised.
func (r Report) Wrong() []Flow {
	var wrong []Flow
	for _, f := range r.Flows {
		if !f.OK {
			wrong = append(wrong, f)
		}
	}
	return wrong
}

// String returns a text such as "IPv4 TCP".
func (w Way) String() string { return fmt.Sprintf("IPv%d %s", w.Family, strings.ToUpper(w.Proto)) }

// Widths of the columns of WriteHead and WriteFlows. The longest names of classes and verdicts fit.
const (
	classWidth   = 41
	verdictWidth = 24
)

// WriteHead writes the column titles for the lines of WriteFlows.
func WriteHead(w io.Writer) error {
	_, err := fmt.Fprintf(w, "    %-*s%-*s%s\n", classWidth, "FLOW", verdictWidth, "OBSERVED",
		"WAYS")
	return err
}

// WriteFlows writes one line for each verdict among flows, which must be of one class.
func WriteFlows(w io.Writer, flows []Flow) error {
	var order []Verdict
	ways := map[Verdict][]Way{}
	ok := map[Verdict]bool{}
	for _, f := range flows {
		if ways[f.Verdict] == nil {
			order = append(order, f.Verdict)
			ok[f.Verdict] = f.OK
		}
		ways[f.Verdict] = append(ways[f.Verdict], f.Way)
	}
	for _, v := range order {
		mark := "ok  "
		if !ok[v] {
			mark = "NOT "
		}
		if _, err := fmt.Fprintf(w, "%s%-*s%-*s%s\n", mark, classWidth, flows[0].Class,
			verdictWidth, v, joinWays(ways[v])); err != nil {
			return err
		}
	}
	return nil
}

// joinWays returns a text such as "IPv4 TCP UDP, IPv6 TCP" for ways that are sorted by family.
func joinWays(ways []Way) string {
	var b strings.Builder
	for i, w := range ways {
		text := w.String()
		if i > 0 && ways[i-1].Family == w.Family {
			text = " " + strings.ToUpper(w.Proto)
		} else if i > 0 {
			text = ", " + text
		}
		b.WriteString(text)
	}
	return b.String()
}

// WriteEnd writes what was skipped, details of each flow that was not as promised, and the numbers
// of flows.
func (r Report) WriteEnd(w io.Writer) error {
	var b strings.Builder
	for _, s := range r.Skipped {
		fmt.Fprintf(&b, "not tested: %s: %s\n", s.What, s.Why)
	}

	wrong := r.Wrong()
	for _, f := range wrong {
		fmt.Fprintf(&b, "\n%s, %s, %s to %s: promised is %q, observed %q\n", f.Class, f.Way, f.From,
			f.To, f.Promised, f.Verdict)
		if f.Error != "" {
			fmt.Fprintf(&b, "  not delivered: %s\n", f.Error)
		}
		for _, node := range r.Nodes {
			s := f.Seen[node]
			fmt.Fprintf(&b, "  uplinks of %s: %d frames, %d of a tunnel, %d with the payload in "+
				"clear, %d lost\n", node, s.Frames, s.Tunnel, s.Clear, s.Dropped)
			for _, e := range s.Examples {
				fmt.Fprintf(&b, "    %s\n", e)
			}
		}
	}

	if len(wrong) == 0 && len(r.Flows) > 0 {
		fmt.Fprintf(&b, "\n%d flows, all as promised\n", len(r.Flows))
	} else {
		fmt.Fprintf(&b, "\n%d flows, %d NOT as promised\n", len(r.Flows), len(wrong))
	}

	_, err := io.WriteString(w, b.String())
	return err
}
