package guard

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// A pod's packet is recognized by the group of its link, from the moment the link exists, so no
// program is attached to it. The rules are here. The elements, one for each address of a pod,
// belong to the plugin (pkg/pod), and no change of the rules touches them:
//
//	pod ─► vpod… ─► kubeveil_pods (raw-10): mark; source not in @pods: drop ─► kubeveil_guard (raw) ─► route
//
// If only this table is missing, the guard's table drops pods' packets without a mark.

// beforeGuard is before priority raw (-300), where the guard judges by the mark, and so before
// connection tracking (-200) and routing.
const beforeGuard = -310

// ifNameLen is IFNAMSIZ (include/uapi/linux/if.h).
const ifNameLen = 16

// podSets are the sets of addresses, with the field that each is matched against.
var podSets = []struct {
	name, saddr string
	addr        nftables.SetDatatype
}{
	{abi.NFTPodSet4, "ip saddr", nftables.TypeIPAddr},
	{abi.NFTPodSet6, "ip6 saddr", nftables.TypeIP6Addr},
}

// podChain is the chain for packets from pods.
func podChain() chain {
	set := rewriteMark(abi.TunnelMark, abi.PodMark)
	rules := []rule{
		{fmt.Sprintf("iifgroup != %#x return", abi.PodGroup), []expr.Any{
			&expr.Meta{Key: expr.MetaKeyIIFGROUP, Register: 1},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1,
				Data: binaryutil.NativeEndian.PutUint32(abi.PodGroup)},
			&expr.Verdict{Kind: expr.VerdictReturn},
		}},
		{set.text, set.exprs},
	}
	for _, s := range podSets {
		rules = append(rules, dropForged(s.saddr, s.name))
	}
	return chain{abi.NFTPodChain, nftables.ChainTypeFilter, nftables.ChainHookPrerouting,
		nftables.ChainPriorityRef(beforeGuard), rules}
}

// dropForged drops packets whose source does not belong to their link.
func dropForged(saddr, set string) rule {
	const name, addr = unix.NFT_REG_1, unix.NFT_REG_2 // both in one key
	f := fields[saddr]
	return rule{fmt.Sprintf("iifname . %s not @%s counter %s drop", saddr, set, spoofed),
		[]expr.Any{
			&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: name},
			&expr.Cmp{Op: expr.CmpOpEq, Register: name, Data: []byte{f.proto}},
			&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: name},
			&expr.Payload{DestRegister: addr, Base: expr.PayloadBaseNetworkHeader, Offset: f.offset,
				Len: f.len},
			&expr.Lookup{SourceRegister: name, SetName: set, Invert: true},
			&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: spoofed},
			&expr.Verdict{Kind: expr.VerdictDrop},
		}}
}

// passMarked accepts pods' packets with their mark. It drops them while the pods' table is missing.
func passMarked() []rule {
	pods := ofGroup("iif", expr.MetaKeyIIFGROUP, abi.PodGroup)
	pass := &match{fmt.Sprintf("%s mark %#x", pods.text, abi.PodMark),
		append(slices.Clone(pods.exprs), marked()...)}
	return []rule{
		ruleOf(pass, expr.VerdictReturn, ""),
		{fmt.Sprintf("%s counter %s drop", pods.text, unmarked), append(pods.exprs,
			&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: unmarked},
			&expr.Verdict{Kind: expr.VerdictDrop})},
	}
}

// plannedPods returns the shape of the pods' table.
func plannedPods() string {
	var lines shapeLines
	lines.planned(podChain())
	for _, s := range podSets {
		lines.add("set %s key %d", s.name, ifNameLen+s.addr.Bytes)
	}
	lines.add("counter %s", spoofed)
	return lines.String()
}

// readPods reads the shape of the pods' table, "" when there is none.
func readPods() (string, error) {
	c, err := nftables.New()
	if err != nil {
		return "", err
	}
	t, err := findTable(c, abi.NFTPodTable)
	if err != nil || t == nil {
		return "", err
	}
	var lines shapeLines
	if err := readChains(c, t, &lines); err != nil {
		return "", err
	}
	sets, err := c.GetSets(t)
	if err != nil {
		return "", fmt.Errorf("list sets: %w", err)
	}
	for _, s := range sets {
		lines.add("set %s key %d", s.Name, s.KeyType.Bytes)
	}
	if err := readCounterNames(c, t, &lines); err != nil {
		return "", err
	}
	return lines.String(), nil
}

// opPods replaces the rules in one transaction. Sets and counter stay, so no pod loses its
// addresses, and a concurrent ADD is not lost. Only if a set has another shape, everything is
// replaced, and the daemon's repair of pods fills the sets.
func opPods(have string) Op {
	return Op{"write nftables table " + abi.NFTPodTable, abi.NFTPodTable,
		func(*Guard, *nl.Handle) error {
			counts, err := readTableCounters(abi.NFTPodTable)
			if err != nil {
				return err
			}
			c, err := transaction()
			if err != nil {
				return err
			}

			t := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet,
				Name: abi.NFTPodTable})
			_, counted := counts[spoofed]
			if foreignToPods(have) {
				c.DelTable(t)
				c.AddTable(t)
				counted = false
			}

			if !counted {
				c.AddObj(&nftables.CounterObj{Table: t, Name: spoofed, Packets: counts[spoofed]})
			}
			if err := addPodSets(c, t); err != nil {
				return err
			}

			// An old chain can be deleted, on whatever hook, once another table exists.
			ch := podChain()
			c.DelChain(c.AddChain(&nftables.Chain{Name: ch.name, Table: t}))
			addChain(c, t, ch)
			return c.Flush()
		}}
}

func addPodSets(c *nftables.Conn, t *nftables.Table) error {
	for _, s := range podSets {
		key, err := nftables.ConcatSetType(nftables.TypeIFName, s.addr)
		if err != nil {
			return err
		}
		if err := c.AddSet(&nftables.Set{Table: t, Name: s.name, KeyType: key, Concatenation: true},
			nil); err != nil {
			return fmt.Errorf("add set %s: %w", s.name, err)
		}
	}
	return nil
}

// foreignToPods reports whether a shape has anything that must not stay beside ours: a foreign set
// or counter, or a chain of another name.
func foreignToPods(have string) bool {
	ours := make(map[string]bool)
	for line := range strings.Lines(plannedPods()) {
		ours[line] = true
	}
	for line := range strings.Lines(have) {
		kind, rest, _ := strings.Cut(line, " ")
		inChain := kind != "set" && kind != "counter" &&
			strings.HasPrefix(rest, abi.NFTPodChain+" ")
		if !ours[line] && !inChain {
			return true
		}
	}
	return false
}
