package table

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// Somebody may delete or flush the table that judges while the daemon is dead. So its chains at
// hooks stamp each packet (PolicyMark), and a second table drops packets of pods without a stamp:
//
//	postrouting 94, input 100   take the stamp off: another program may use the bit
//	postrouting 95, input 101   the table that judges: stamp, then judge
//	postrouting 96, input 102   a stamp: take it off; none, and a pod's packet: drop
//
// The stamp is first in its chain, so no packet that was not dropped leaves the chain without one,
// known connections included. Both tables are written in one transaction.

// unstamped is the reason of a packet that was not judged.
const unstamped = "policy_unstamped"

var stampTable = &nftables.Table{Family: nftables.TableFamilyINet, Name: abi.NFTStampTable}

// stampState is what the kernel has of the table; the zero value is none.
type stampState struct {
	texts   []string
	dropped uint64
}

// stampChain is a chain of the table and its name.
type stampChain struct {
	name string
	chain
}

func stampChains() []stampChain {
	unset := markBits(^abi.PolicyMark, 0)
	clears := rule{fmt.Sprintf("mark set mark & %#x", ^abi.PolicyMark), unset}
	has := match{fmt.Sprintf("mark & %#x != 0", abi.PolicyMark), []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: firstRegister},
		&expr.Bitwise{SourceRegister: firstRegister, DestRegister: firstRegister, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(abi.PolicyMark), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: firstRegister, Data: make([]byte, 4)},
	}}
	takes := has.and(match(clears)).verdict(expr.VerdictReturn, "")
	drops := match(drop(unstamped))
	from := rule(ofPods("iifgroup", expr.MetaKeyIIFGROUP).and(drops))
	to := rule(ofPods("oifgroup", expr.MetaKeyOIFGROUP).and(drops))

	post := func(name string, priority nftables.ChainPriority, rules ...rule) stampChain {
		return stampChain{name, chain{hook: nftables.ChainHookPostrouting, priority: priority,
			rules: rules}}
	}
	host := func(name string, priority nftables.ChainPriority, rules ...rule) stampChain {
		return stampChain{name, chain{hook: nftables.ChainHookInput, priority: priority,
			rules: rules}}
	}
	return []stampChain{
		post("clear_post", priorityPost-1, clears),
		post("check_post", priorityPost+1, takes,
			byHostProcess().verdict(expr.VerdictReturn, ""), from, to),
		host("clear_host", priorityInput-1, clears),
		// A probe of the node needs its answer, or the kubelet restarts pods that are only mute.
		host("check_host", priorityInput+1, takes, isReply().verdict(expr.VerdictReturn, ""), from),
	}
}

// isReply matches answers to the connections of another end.
func isReply() match {
	const reply = 1 // IP_CT_DIR_REPLY
	return match{"ct direction reply", []expr.Any{
		&expr.Ct{Key: expr.CtKeyDIRECTION, Register: firstRegister},
		&expr.Cmp{Op: expr.CmpOpEq, Register: firstRegister, Data: []byte{reply}},
	}}
}

// setStamp stamps all packets.
func setStamp() rule {
	return rule{fmt.Sprintf("mark set mark | %#x", abi.PolicyMark),
		markBits(^abi.PolicyMark, abi.PolicyMark)}
}

// markBits makes the mark its bits of mask, exclusive or xor.
func markBits(mask, xor uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: firstRegister},
		&expr.Bitwise{SourceRegister: firstRegister, DestRegister: firstRegister, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(mask),
			Xor:  binaryutil.NativeEndian.PutUint32(xor)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: firstRegister},
	}
}

// stampTexts describe the table as readStamp does.
func stampTexts() []string {
	texts := []string{"counter " + unstamped}
	for _, ch := range stampChains() {
		for _, text := range ch.texts() {
			texts = append(texts, ch.name+": "+text)
		}
	}
	slices.Sort(texts)
	return texts
}

func readStamp(c *nftables.Conn) (s stampState, err error) {
	if ok, err := there(c, stampTable); !ok {
		return s, err
	}
	chains, err := c.ListChainsOfTableFamily(stampTable.Family)
	if err != nil {
		return s, fmt.Errorf("list chains: %w", err)
	}
	for _, ch := range chains {
		if ch.Table.Name != stampTable.Name {
			continue
		}
		s.texts = append(s.texts, ch.Name+": "+hookText(ch))
		rules, err := c.GetRules(stampTable, ch)
		if err != nil {
			return s, fmt.Errorf("list rules of %s: %w", ch.Name, err)
		}
		for _, r := range rules {
			text, _ := userdata.GetString(r.UserData, userdata.TypeComment)
			s.texts = append(s.texts, ch.Name+": "+text)
		}
	}

	objects, err := c.GetObjects(stampTable)
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, fs.ErrNotExist) {
		return s, fmt.Errorf("list counters of %s: %w", stampTable.Name, err)
	}
	for _, o := range objects {
		if n, ok := o.(*nftables.CounterObj); ok {
			s.texts = append(s.texts, "counter "+n.Name)
			s.dropped = n.Packets
		}
	}
	slices.Sort(s.texts)
	return s, nil
}

// writeStamp adds the table, in place of one that is there, to the transaction of c.
func writeStamp(c *nftables.Conn, dropped uint64) {
	c.AddTable(stampTable)
	c.DelTable(stampTable)
	c.AddTable(stampTable)
	c.AddObj(&nftables.CounterObj{Table: stampTable, Name: unstamped, Packets: dropped})
	for _, ch := range stampChains() {
		accept := nftables.ChainPolicyAccept
		made := c.AddChain(&nftables.Chain{Table: stampTable, Name: ch.name,
			Type: nftables.ChainTypeFilter, Hooknum: ch.hook, Priority: &ch.priority,
			Policy: &accept})
		for _, r := range ch.rules {
			c.AddRule(&nftables.Rule{Table: stampTable, Chain: made, Exprs: r.exprs,
				UserData: userdata.AppendString(nil, userdata.TypeComment, r.text)})
		}
	}
}
