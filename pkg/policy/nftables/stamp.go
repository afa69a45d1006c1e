package nftables

import (
	"fmt"
	"maps"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"

	"github.com/kubeveil/kubeveil/internal/nfnl"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// An administrator may delete or flush the table that judges while the daemon is dead. So its
// chains at hooks stamp each packet (PolicyMark), and a second table drops packets of pods without
// a stamp:
//
//	postrouting 94, input 100   take the stamp off: another program may use the bit
//	postrouting 95, input 101   the table that judges: stamp, then judge
//	postrouting 96, input 102   a stamp: take it off; a pod's packet without a stamp: drop
//
// Packets of the node's own processes at postrouting, and packets that no pod sent at input, pass
// both tables without a stamp. Most of these are encrypted. The rule that stamps follows, before
// any rule that judges. So each other packet that is not dropped leaves the chain with a stamp,
// also those of known connections. Both tables are written in one transaction.

// unstamped is the drop reason of packets that were not judged.
const unstamped = "policy_unstamped"

var stampTable = &nftables.Table{Family: nftables.TableFamilyINet, Name: abi.NFTStampTable}

// stampState is the content of the table in the kernel. The zero value means that there is no
// table.
type stampState struct {
	chains  map[string]summary
	dropped uint64
}

// stampChain is a chain of the table and its name.
type stampChain struct {
	name string
	chain
}

func stampChains() []stampChain {
	unset := markBits(^abi.PolicyMark, 0)
	clears := match{fmt.Sprintf("mark set mark & %#x", ^abi.PolicyMark), unset}
	has := match{fmt.Sprintf("mark & %#x != 0", abi.PolicyMark), encode(
		&expr.Meta{Key: expr.MetaKeyMARK, Register: firstRegister},
		&expr.Bitwise{SourceRegister: firstRegister, DestRegister: firstRegister, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(abi.PolicyMark), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: firstRegister, Data: make([]byte, 4)},
	)}
	// Setting a mark costs more than comparing it, and a mark of another program is rare.
	clear := rule(has.and(clears))
	takes := has.and(clears).verdict(expr.VerdictReturn, "")
	drops := drop(unstamped)
	from := rule(fromPods(expr.CmpOpEq).and(match(drops)))
	to := rule(toPods(expr.CmpOpEq).and(match(drops)))

	post := func(name string, priority nftables.ChainPriority, rules ...rule) stampChain {
		return stampChain{name, chain{hook: nftables.ChainHookPostrouting, priority: priority,
			make: fixed(rules...).make}}
	}
	host := func(name string, priority nftables.ChainPriority, rules ...rule) stampChain {
		return stampChain{name, chain{hook: nftables.ChainHookInput, priority: priority,
			make: fixed(rules...).make}}
	}
	return []stampChain{
		{unstamped, *fixed(logDropsOfAll(unstamped), countDrop(unstamped))},
		post("clear_post", priorityPost-1, clear),
		post("check_post", priorityPost+1, byHostProcess().verdict(expr.VerdictReturn, ""), takes,
			from, to),
		host("clear_host", priorityInput-1, clear),
		// A probe of the node needs its answer, or the kubelet restarts pods that are only mute.
		host("check_host", priorityInput+1, fromPods(expr.CmpOpNeq).verdict(expr.VerdictReturn, ""),
			takes, isReply().verdict(expr.VerdictReturn, ""), drops),
	}
}

// isReply matches packets in the reply direction of their connection.
func isReply() match {
	const reply = 1 // IP_CT_DIR_REPLY
	return match{"ct direction reply", encode(
		&expr.Ct{Key: expr.CtKeyDIRECTION, Register: firstRegister},
		&expr.Cmp{Op: expr.CmpOpEq, Register: firstRegister, Data: []byte{reply}},
	)}
}

// setStamp returns a rule that stamps all packets.
func setStamp() rule {
	return rule{fmt.Sprintf("mark set mark | %#x", abi.PolicyMark),
		markBits(^abi.PolicyMark, abi.PolicyMark)}
}

// markBits returns expressions that set the mark to (mark & mask) ^ xor.
func markBits(mask, xor uint32) []byte {
	return encode(
		&expr.Meta{Key: expr.MetaKeyMARK, Register: firstRegister},
		&expr.Bitwise{SourceRegister: firstRegister, DestRegister: firstRegister, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(mask),
			Xor:  binaryutil.NativeEndian.PutUint32(xor)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: firstRegister},
	)
}

// stampWanted returns the table as readStamp returns it, without the counter.
var stampWanted = sync.OnceValue(func() map[string]summary {
	out := map[string]summary{}
	for _, ch := range stampChains() {
		out[ch.name] = ch.summary(nil)
	}
	return out
})

// whole reports whether the table has exactly the wanted chains and rules.
func (s stampState) whole() bool { return maps.Equal(s.chains, stampWanted()) }

// readStamp reads the table. A table that is dormant or lacks its counter is not whole.
func readStamp(c *nfnl.Conn) (s stampState, err error) {
	there, dormant, err := readTable(c, stampTable.Name)
	if err != nil || !there {
		return s, err
	}
	counters, err := readCounters(c, stampTable.Name)
	if err != nil {
		return s, err
	}
	dropped, has := counters[unstamped]
	if s.dropped = dropped; !has || dormant {
		return s, nil
	}
	s.chains, err = readChains(c, stampTable.Name)
	return s, err
}

// writeStamp adds the table to a transaction. It replaces an existing table.
func writeStamp(t *transaction, dropped uint64) {
	t.addTable(stampTable.Name)
	t.deleteTable(stampTable.Name)
	t.addTable(stampTable.Name)
	t.addCounter(stampTable.Name, unstamped, dropped)
	for _, ch := range stampChains() {
		t.addChain(stampTable.Name, ch.name, &ch.chain)
		t.addRules(stampTable.Name, ch.name, ch.rules(nil))
	}
}
