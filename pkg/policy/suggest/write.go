package suggest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
)

// head begins the output. It holds the caveats that apply to all suggested policies.
const head = `# NetworkPolicies of namespace %s, suggested from known connections.
# Read and change them before use.
#
# They allow the connections that these nodes know now: %s.
# They cannot know:
#   - what has no connection at this moment: jobs, look-ups by DNS, webhooks, silent clients
#   - what should be denied: a connection of an attacker is written like any other
#   - clients behind a node's address, which is masqueraded: externalTrafficPolicy Cluster
# Rules have the ports of pods, behind a service.
# veilctl policy try -f FILE --cluster shows which known connections they would end.
`

// Write writes a NetworkPolicy for each group of pods with connections, as YAML documents. missing
// are nodes that did not answer.
func Write(w io.Writer, namespace string, seen []Seen, missing []string) error {
	out := &bytes.Buffer{}
	var nodes []string
	leftOut, other, denied := 0, 0, 0
	for _, s := range seen {
		nodes = append(nodes, s.Node)
		leftOut, other, denied = leftOut+s.LeftOut, other+s.Other, denied+s.Denied
	}
	slices.Sort(nodes)
	fmt.Fprintf(out, head, quote(namespace), list(nodes))

	for _, n := range []struct {
		count int
		text  string
	}{{leftOut, "connections are beyond a bound, and left out"},
		{other, "connections have a protocol without ports, which NetworkPolicy does not know"},
		{denied, "connections are denied now, and left out"}} {
		if n.count > 0 {
			fmt.Fprintf(out, "# NOTE %d %s\n", n.count, n.text)
		}
	}
	if len(missing) > 0 {
		fmt.Fprintf(out, "# NOTE nodes that did not answer: %s\n", list(missing))
	}

	rows := merge(seen)
	number := 0
	for len(rows) > 0 {
		key := rows[0].Subject.Key()
		n := slices.IndexFunc(rows, func(r Row) bool { return r.Subject.Key() != key })
		if n < 0 {
			n = len(rows)
		}
		number++
		writePolicy(out, namespace, number, rows[:n])
		rows = rows[n:]
	}
	if number == 0 {
		fmt.Fprintln(out, "# NOTE no connections of its pods are known")
	}
	_, err := w.Write(out.Bytes())
	return err
}

// writePolicy writes the policy of one subject.
func writePolicy(out *bytes.Buffer, namespace string, number int, rows []Row) {
	subject := rows[0].Subject
	if subject.Namespace != namespace || len(subject.Labels) == 0 {
		fmt.Fprintf(out, "# NOTE pods such as %s have no labels that select them: no policy is "+
			"written\n", quote(subject.Example))
		return
	}

	fmt.Fprintf(out, `---
# Pods such as %s.
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: "suggested-%d", namespace: %s}
spec:
`, quote(subject.Example), number, quote(namespace))
	noteOthers(out, "  ", subject)
	fmt.Fprintf(out, "  podSelector: {matchLabels: %s}\n  policyTypes: [Ingress, Egress]\n",
		quote(subject.Labels))
	for _, egress := range []bool{false, true} {
		field, peers := "ingress", "from"
		if egress {
			field, peers = "egress", "to"
		}
		first := true
		for _, r := range rows {
			if r.Egress != egress {
				continue
			}
			if r.Peer.Unknown {
				fmt.Fprintf(out, "  # NOTE left out: %s %s, %s %d, a pod's address of which no pod is "+
					"known\n", peers, quote(r.Peer.Addr), word(r.Protocol), r.Port)
				continue
			}
			if first {
				fmt.Fprintf(out, "  %s:\n", field)
				first = false
			}
			writeRule(out, namespace, peers, r)
		}
	}
}

func writeRule(out *bytes.Buffer, namespace, peers string, r Row) {
	fmt.Fprintf(out, "  # connections: %d\n", r.Connections)
	peer := ""
	switch p := r.Peer.Pods; {
	case p != nil:
		fmt.Fprintf(out, "  # pods such as %s in %s\n", quote(p.Example), quote(p.Namespace))
		noteOthers(out, "  ", *p)
		if p.Namespace != namespace || len(p.Labels) == 0 {
			peer = fmt.Sprintf("namespaceSelector: {matchLabels: %s}", quote(map[string]string{
				"kubernetes.io/metadata.name": p.Namespace}))
		}
		if len(p.Labels) > 0 {
			if peer != "" {
				peer += ", "
			}
			peer += fmt.Sprintf("podSelector: {matchLabels: %s}", quote(p.Labels))
		} else {
			fmt.Fprint(out, "  # NOTE they have no labels that select them: the whole namespace\n")
		}
	default:
		if r.Peer.Node != "" {
			fmt.Fprintf(out, "  # node %s\n", quote(r.Peer.Node))
		}
		peer = fmt.Sprintf("ipBlock: {cidr: %s}", quote(prefix(r.Peer.Addr)))
	}

	fmt.Fprintf(out, "  - %s: [{%s}]\n    ports: [{protocol: %s, port: %d}]\n", peers, peer,
		word(r.Protocol), r.Port)
}

func noteOthers(out *bytes.Buffer, indent string, p Pods) {
	if p.Others > 0 {
		fmt.Fprintf(out, "%s# NOTE these labels select %d more pods, such as %s\n", indent, p.Others,
			quote(p.Other))
	}
}

// prefix returns the prefix of one address, or a text that no API server accepts.
func prefix(addr string) string {
	a, err := netip.ParseAddr(addr)
	if err != nil {
		return addr
	}
	return netip.PrefixFrom(a, a.BitLen()).String()
}

// word returns a protocol of NetworkPolicy.
func word(protocol string) string {
	if protocol == "UDP" || protocol == "SCTP" {
		return protocol
	}
	return "TCP"
}

// quote returns a value as JSON, which is YAML on one line.
func quote(v any) string {
	text, _ := json.Marshal(v) // strings and maps of strings always have JSON
	return string(text)
}

func list(names []string) string {
	var quoted []string
	for _, n := range names {
		quoted = append(quoted, quote(n))
	}
	return strings.Join(quoted, ", ")
}
