package firewall

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// Judge is a base chain of another program, at a hook that packets on the fast path bypass, that may
// drop, reject, queue or redirect packets of pods.
type Judge struct {
	// Family is ip, ip6, inet or netdev. With iptables-legacy, Table is its table and Chain is "".
	Family, Table, Chain string
}

// String returns words that name the chain.
func (j Judge) String() string {
	if j.Chain == "" {
		return fmt.Sprintf("the table %s of iptables-legacy (%s)", j.Table, j.Family)
	}
	return fmt.Sprintf("the chain %s in nftables table %s %s", j.Chain, j.Family, j.Table)
}

// knownTables and knownChains are tables and chains of other programs whose verdicts do not concern
// packets between pods: host ports of the CNI plugin portmap, which veild knows from the plugin's
// records, and chains to which the base chains of kube-proxy and the kubelet jump, because veild
// translates services itself. They are whole names: kube-router's chains begin with KUBE-, too.
var (
	knownTables = []string{"cni_hostport", "kube-proxy"}
	knownChains = []string{"CNI-HOSTPORT-DNAT", "KUBE-EXTERNAL-SERVICES", "KUBE-FIREWALL",
		"KUBE-FORWARD", "KUBE-IPVS-FILTER", "KUBE-NODE-PORT", "KUBE-NODEPORTS",
		"KUBE-PROXY-FIREWALL", "KUBE-SERVICES", "KUBE-SOURCE-RANGES-FIREWALL"}
)

// maxJudgeRules bounds the rules that FindJudge reads of one base chain. A chain with more counts
// as a Judge.
const maxJudgeRules = 10000

// FindJudge returns the first Judge in the network namespace of the calling thread, in the kernel's
// order. found reports whether there is one. It follows jumps and treats a map of verdicts as a
// verdict. The rules of iptables-legacy cannot be read, so each of its tables counts. proc is the
// root of procfs.
func FindJudge(proc string) (j Judge, found bool, err error) {
	legacy, err := legacyTables(proc)
	if len(legacy) > 0 {
		return legacy[0], true, nil
	}
	if err != nil {
		return j, false, err
	}
	// All requests use one socket, because closing a socket delays transactions of nftables.
	c, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return j, false, fmt.Errorf("look for chains of other programs: %w", err)
	}
	defer func() { _ = c.CloseLasting() }()
	chains, err := c.ListChains()
	if err != nil {
		return j, false, fmt.Errorf("look for chains of other programs: %w", err)
	}

	for _, chain := range chains {
		family := bypassed(chain)
		if family == "" || isKnown(chain.Table.Name) {
			continue
		}
		w := walk{conn: c, seen: map[string]bool{},
			last: family != netdev && *chain.Hooknum == *nftables.ChainHookPostrouting}
		judges, err := w.judges(chain)
		if err != nil {
			return j, false, fmt.Errorf("read chain %s of table %s %s: %w", chain.Name, family,
				chain.Table.Name, err)
		}
		if judges {
			return Judge{family, chain.Table.Name, chain.Name}, true, nil
		}
	}
	return j, false, nil
}

// netdev is the family whose chains are at the ingress and egress of links.
const netdev = "netdev"

// inetIngress is the number of the hook ingress in the family inet, NF_INET_INGRESS
// (include/uapi/linux/netfilter.h).
const inetIngress = nftables.ChainHook(5)

// bypassed returns the family of a base chain at a hook that packets on the fast path bypass. It
// returns "" for other chains.
func bypassed(chain *nftables.Chain) string {
	switch {
	case chain.Hooknum == nil:
		return ""
	case chain.Table.Family == nftables.TableFamilyNetdev:
		return netdev
	}
	switch *chain.Hooknum {
	case *nftables.ChainHookPrerouting, *nftables.ChainHookForward, *nftables.ChainHookPostrouting,
		inetIngress:
		return families[chain.Table.Family]
	}
	return ""
}

func isKnown(table string) bool {
	return strings.HasPrefix(table, abi.NFTPrefix) || slices.Contains(knownTables, table)
}

// walk reads the rules that packets of a base chain may reach.
type walk struct {
	conn  *nftables.Conn
	seen  map[string]bool // chains, by name
	rules int
	last  bool // the base chain is at postrouting
}

// judges reports whether a rule of the chain, or of a chain that it jumps to, has a verdict.
func (w *walk) judges(chain *nftables.Chain) (bool, error) {
	if chain.Policy != nil && *chain.Policy == nftables.ChainPolicyDrop {
		return true, nil
	}
	w.seen[chain.Name] = true
	rules, err := w.conn.GetRules(chain.Table, chain)
	if err != nil {
		return false, err
	}
	if w.rules += len(rules); w.rules > maxJudgeRules {
		return true, nil
	}

	for _, r := range rules {
		for _, e := range r.Exprs {
			judges, next := w.judgment(e)
			if judges {
				return true, nil
			}
			if next == "" || w.seen[next] || slices.Contains(knownChains, next) {
				continue
			}
			judges, err := w.judges(&nftables.Chain{Name: next, Table: chain.Table})
			if judges || err != nil {
				return judges, err
			}
		}
	}
	return false, nil
}

// harmless are targets of iptables that change or log a packet and let it pass.
var harmless = []string{"AUDIT", "CHECKSUM", "CLASSIFY", "CONNMARK", "CONNSECMARK", "CT", "DSCP", "HL",
	"LOG", "MARK", "NFLOG", "SECMARK", "TCPMSS", "TOS", "TRACE", "TTL"}

// translators are targets of iptables that translate the source of a packet.
var translators = []string{"MASQUERADE", "NETMAP", "SNAT"}

// judgment reports whether an expression decides about a packet other than to accept it. next is
// the chain that it jumps to, or "". A translation at postrouting does not judge:
// programs translate the source of what leaves the node there.
func (w *walk) judgment(e expr.Any) (judges bool, next string) {
	switch e := e.(type) {
	case *expr.Verdict:
		switch e.Kind {
		case expr.VerdictJump, expr.VerdictGoto:
			return false, e.Chain
		case expr.VerdictAccept, expr.VerdictReturn, expr.VerdictContinue, expr.VerdictBreak:
			return false, ""
		}
		return true, ""
	case *expr.Lookup:
		return e.IsDestRegSet && e.DestRegister == verdictRegister, ""
	case *expr.Target:
		return !slices.Contains(harmless, e.Name) &&
			!(w.last && slices.Contains(translators, e.Name)), ""
	case *expr.NAT:
		return !w.last, ""
	case *expr.Reject, *expr.Queue, *expr.Redir, *expr.TProxy:
		return true, ""
	}
	return false, ""
}

// verdictRegister is NFT_REG_VERDICT (include/uapi/linux/netfilter/nf_tables.h).
const verdictRegister = 0
