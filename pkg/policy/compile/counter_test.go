package compile_test

import (
	"fmt"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/compile"
)

// drawRule returns a rule. No two rules have the same ports, and none has enough pod selectors to
// be joined. So each peer has its own line for each range of ports.
func drawRule(t *rapid.T, i int) (r policy.Rule) {
	for j := range rapid.IntRange(0, 4).Draw(t, "peers") {
		label := policy.Selector{{Key: fmt.Sprint(i, j), Op: policy.Exists}}
		r.Peers = append(r.Peers, rapid.SampledFrom([]policy.Peer{
			{Pods: &label}, {Namespaces: &label}, {Nodes: &label},
			{Block: &policy.Block{CIDR: netip.PrefixFrom(netip.AddrFrom4(
				[4]byte{198, 18, byte(i), byte(j)}), 32)}},
		}).Draw(t, "peer"))
	}
	first := uint16(1 + 100*i)
	for j := range rapid.IntRange(1, 3).Draw(t, "ports") {
		at := first + uint16(10*j)
		r.Ports = append(r.Ports, rapid.SampledFrom([]policy.Port{
			{Proto: policy.TCP, First: at, Last: at}, {Proto: policy.UDP, First: at, Last: at + 9},
			{Proto: policy.TCP, First: at + 1, Last: at}, {Proto: policy.TCP, Name: fmt.Sprint("p", at)},
		}).Draw(t, "port"))
	}
	return r
}

// The size of a policy is the number of lines that compiling it makes, also if a direction denies
// everything.
func TestLineCountIsTheNumberOfCompiledLines(t *testing.T) {
	denied := 0
	rapid.Check(t, func(t *rapid.T) {
		p := policy.Policy{Name: policy.Name{Namespace: "a", Name: "p"}}
		subject := &policy.Pod{}
		for d := range p.Rules {
			p.Isolates[d] = rapid.Bool().Draw(t, "isolates")
			for i := range rapid.IntRange(0, 3).Draw(t, "rules") {
				r := drawRule(t, i)
				p.Rules[d] = append(p.Rules[d], r)
				for _, port := range r.Ports {
					if port.Name != "" && d == int(policy.Ingress) {
						subject.Ports = append(subject.Ports,
							policy.NamedPort{Name: port.Name, Proto: port.Proto, Port: 1})
					}
				}
			}
		}

		c := compile.New(p, 1)
		counted := c.LineCount()
		c.Compile()
		if c.Problem != "" {
			denied++
		}
		lines := len(c.LinesOf(policy.Ingress, subject)) + len(c.LinesOf(policy.Egress, subject))
		if counted != lines || c.LineCount() != lines || c.Again(2).LineCount() != lines {
			t.Fatalf("counted %d lines, compiled %d: %q", counted, lines, c.Problem)
		}
		if n := c.Denying(3, "large").LineCount(); n != 0 {
			t.Fatalf("%d lines of a policy that denies", n)
		}
	})
	if denied == 0 {
		t.Error("no direction denied: the test shows nothing")
	}
}

// Exceptions of a block make ranges, which count where they are more than the lines.
func TestRangesCountAsLines(t *testing.T) {
	block := policy.Block{CIDR: netip.MustParsePrefix("10.0.0.0/8"),
		Except: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"),
			netip.MustParsePrefix("10.3.0.0/16")}}
	p := policy.Policy{Isolates: [2]bool{policy.Egress: true}, Rules: [2][]policy.Rule{
		policy.Egress: {{Peers: []policy.Peer{{Block: &block}, {Block: &block}}}}}}
	if n := compile.New(p, 1).LineCount(); n != 6 {
		t.Errorf("%d lines, want 3 ranges per peer", n)
	}
}
