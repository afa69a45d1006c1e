package nftables

import (
	"fmt"
	"time"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// Log of drops: the group of nflog, the first bytes of a packet, and how many packets a second of
// one source, or of all sources outside together, in one chain.
const (
	logGroup   = 118
	logSnaplen = 96
	logRate    = 10
)

// loggedFor and loggedRoom bound the elements of family.logged: sources with their limits.
const (
	loggedFor  = 10 * time.Second
	loggedRoom = 1 << 14
)

// logDrops returns rules that send packets of the families to a listener of nflog, if there is one,
// just before they are dropped. Each pod of the cluster has its own limit, so that a pod that is
// often denied does not hide others. Sources outside are unbounded, so they share one limit.
func logDrops(prefix string, of ...family) (rules []rule) {
	limit := &expr.Limit{Type: expr.LimitTypePkts, Rate: logRate, Unit: expr.LimitTimeSecond,
		Burst: logRate}
	log := match{"log group 118 prefix " + prefix, encode(&expr.Log{
		Key:   1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_PREFIX | 1<<unix.NFTA_LOG_SNAPLEN,
		Group: logGroup, Snaplen: logSnaplen, Data: []byte(prefix)})}
	for _, f := range of {
		each := match{"update @" + f.logged + " { " + f.name + " saddr limit rate 10/second }", encode(
			f.load(f.saddr, firstRegister),
			&expr.Dynset{SrcRegKey: firstRegister, SetName: f.logged,
				Operation: unix.NFT_DYNSET_OP_UPDATE, Exprs: []expr.Any{limit}})}
		rules = append(rules, rule(f.is().and(fromInside(expr.CmpOpEq)).and(each).and(log)))
	}
	all := match{"limit rate 10/second", encode(limit)}
	return append(rules, rule(fromInside(expr.CmpOpNeq).and(all).and(log)))
}

// fromInside matches packets that come in by a pod's link or out of a tunnel, or all others with
// CmpOpNeq. The groups of the two differ in one bit.
func fromInside(op expr.CmpOp) match {
	const mask uint32 = ^(abi.PodGroup ^ abi.TunnelGroup)
	name := "iifgroup"
	if op == expr.CmpOpNeq {
		name += " !="
	}
	return match{fmt.Sprintf("%s { %#x, %#x }", name, abi.PodGroup, abi.TunnelGroup), encode(
		&expr.Meta{Key: expr.MetaKeyIIFGROUP, Register: firstRegister},
		&expr.Bitwise{SourceRegister: firstRegister, DestRegister: firstRegister, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(mask), Xor: make([]byte, 4)},
		&expr.Cmp{Op: op, Register: firstRegister,
			Data: binaryutil.NativeEndian.PutUint32(abi.PodGroup & mask)},
	)}
}

// loggedSet returns the set of the sources with their limits.
func (f family) loggedSet() *set {
	return &set{key: f.addr, elements: union{{}}, timeout: loggedFor, room: loggedRoom}
}
