package chains

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"

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

// Unstamped is the drop reason of packets that were not judged.
const Unstamped = "policy_unstamped"

// StampChain is a chain of the table that checks stamps, and its name.
type StampChain struct {
	Name string
	Chain
}

// StampChains returns the chains of the table that checks stamps.
func StampChains() []StampChain {
	unset := markBits(^abi.PolicyMark, 0)
	clears := match{fmt.Sprintf("mark set mark & %#x", ^abi.PolicyMark), unset}
	has := match{fmt.Sprintf("mark & %#x != 0", abi.PolicyMark), encode(
		&expr.Meta{Key: expr.MetaKeyMARK, Register: firstRegister},
		&expr.Bitwise{SourceRegister: firstRegister, DestRegister: firstRegister, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(abi.PolicyMark), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: firstRegister, Data: make([]byte, 4)},
	)}
	// Setting a mark costs more than comparing it, and a mark of another program is rare.
	clear := Rule(has.and(clears))
	takes := has.and(clears).verdict(expr.VerdictReturn, "")
	drops := drop(Unstamped)
	from := Rule(fromPods(expr.CmpOpEq).and(match(drops)))
	to := Rule(toPods(expr.CmpOpEq).and(match(drops)))

	post := func(name string, priority nftables.ChainPriority, rules ...Rule) StampChain {
		return StampChain{name, Chain{Hook: nftables.ChainHookPostrouting, Priority: priority,
			make: fixed(rules...).make}}
	}
	host := func(name string, priority nftables.ChainPriority, rules ...Rule) StampChain {
		return StampChain{name, Chain{Hook: nftables.ChainHookInput, Priority: priority,
			make: fixed(rules...).make}}
	}
	return []StampChain{
		{Unstamped, *fixed(logDropsOfAll(Unstamped), countDrop(Unstamped))},
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
func setStamp() Rule {
	return Rule{fmt.Sprintf("mark set mark | %#x", abi.PolicyMark),
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
