package suggest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strconv"
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
	var nodes, invalid []string
	leftOut, other, denied := 0, 0, 0
	seen = slices.Clone(seen)
	for i, s := range seen {
		nodes = append(nodes, s.Node)
		leftOut, other, denied = leftOut+s.LeftOut, other+s.Other, denied+s.Denied
		rows, others := validRows(s.Rows)
		if seen[i].Rows = rows; others > 0 {
			invalid = append(invalid, s.Node)
		}
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
	if len(invalid) > 0 {
		fmt.Fprintf(out, "# NOTE these nodes sent connections that cannot exist, which are left "+
			"out: %s\n", list(invalid))
	}
	if len(missing) > 0 {
		fmt.Fprintf(out, "# NOTE nodes that did not answer: %s\n", list(missing))
	}

	rows := merge(seen)
	if len(rows) == 0 {
		fmt.Fprintln(out, "# NOTE no connections of its pods are known")
	}
	for len(rows) > 0 {
		key := rows[0].Subject.Key()
		n := slices.IndexFunc(rows, func(r Row) bool { return r.Subject.Key() != key })
		if n < 0 {
			n = len(rows)
		}
		writePolicy(out, namespace, rows[:n])
		rows = rows[n:]
	}
	_, err := w.Write(out.Bytes())
	return err
}

// writePolicy writes the policy of one subject.
func writePolicy(out *bytes.Buffer, namespace string, rows []Row) {
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
metadata: {name: %s, namespace: %s}
spec:
`, quote(subject.Example), quote(nameOf(subject)), quote(namespace))
	noteOthers(out, "  ", subject)
	fmt.Fprintf(out, "  podSelector: {matchLabels: %s}\n  policyTypes: [Ingress, Egress]\n",
		quoteLabels(subject.Labels))
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
					"known\n", peers, quote(r.Peer.Addr), r.Protocol, r.Port)
				continue
			}
			if first {
				fmt.Fprintf(out, "  %s:\n", field)
				first = false
			}
			writeRule(out, namespace, peers, r)
		}
		if first {
			fmt.Fprintf(out, "  # NOTE no rule for %s: all of it is denied\n", field)
		}
	}
}

// nameOf returns the name of the policy for pods. It depends only on their namespace and labels, so
// that a second run replaces the policies of the first.
func nameOf(p Pods) string {
	sum := sha256.Sum256([]byte(p.Key()))
	return "suggested-" + hex.EncodeToString(sum[:5])
}

func writeRule(out *bytes.Buffer, namespace, peers string, r Row) {
	fmt.Fprintf(out, "  # connections: %d\n", r.Connections)
	peer := ""
	switch p := r.Peer.Pods; {
	case p != nil:
		fmt.Fprintf(out, "  # pods such as %s in %s\n", quote(p.Example), quote(p.Namespace))
		noteOthers(out, "  ", *p)
		if p.Namespace != namespace || len(p.Labels) == 0 {
			peer = fmt.Sprintf("namespaceSelector: {matchLabels: %s}", quoteLabels(
				map[string]string{"kubernetes.io/metadata.name": p.Namespace}))
		}
		if len(p.Labels) > 0 {
			if peer != "" {
				peer += ", "
			}
			peer += fmt.Sprintf("podSelector: {matchLabels: %s}", quoteLabels(p.Labels))
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
		r.Protocol, r.Port)
}

func noteOthers(out *bytes.Buffer, indent string, p Pods) {
	if p.Others > 0 {
		fmt.Fprintf(out, "%s# NOTE these labels select %d more pods, such as %s\n", indent, p.Others,
			quote(p.Other))
	}
}

// prefix returns the prefix of one valid address.
func prefix(addr string) string {
	a := netip.MustParseAddr(addr)
	return netip.PrefixFrom(a, a.BitLen()).String()
}

// quote returns text as a YAML string on one line, in ASCII: a parser of YAML ends a comment at
// some other characters, such as U+0085. All escapes of Go are escapes of YAML (YAML 1.2 section
// 5.7).
func quote(text string) string { return strconv.QuoteToASCII(text) }

// quoteLabels returns labels as a YAML mapping on one line.
func quoteLabels(labels map[string]string) string {
	var pairs []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		pairs = append(pairs, quote(key)+":"+quote(labels[key]))
	}
	return "{" + strings.Join(pairs, ",") + "}"
}

func list(names []string) string {
	var quoted []string
	for _, n := range names {
		quoted = append(quoted, quote(n))
	}
	return strings.Join(quoted, ", ")
}
