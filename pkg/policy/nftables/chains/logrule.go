package chains

import (
	"fmt"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// LogBytes is the number of bytes of a packet that are logged. Two IPv6 headers with options, and
// ports, fit in.
const LogBytes = 128

// bucket is a limit of logged packets: rate per second, burst at once.
type bucket struct{ rate, burst uint32 }

// Limits of logged packets of one chain. The rates and bursts of all sources together are 200, so
// no second has more. Each pod of the cluster has a share, for all chains together, so that a pod
// that is often denied does not hide others. Sources outside are unbounded, so they share one
// limit.
var (
	logShare   = bucket{2, 10}
	logFamily  = bucket{40, 40}
	logOutside = bucket{20, 20}
)

// addDrops adds the chains of reasons in which packets are dropped. Their names are the reasons.
func addDrops(to map[string]*Chain, reasons ...string) {
	for _, reason := range reasons {
		if to[reason] == nil {
			to[reason] = fixed(append(logDrops(reason), countDrop(reason))...)
		}
	}
}

// logDrops returns rules that send packets to a listener of nflog, if there is one.
func logDrops(reason string) (rules []Rule) {
	for _, f := range families {
		share := match{"update @" + f.Logged + " { " + f.Name + " saddr " + logShare.text() + " }",
			encode(f.load(f.saddr, firstRegister),
				&expr.Dynset{SrcRegKey: firstRegister, SetName: f.Logged,
					Operation: unix.NFT_DYNSET_OP_UPDATE, Exprs: []expr.Any{logShare.limit()}})}
		rules = append(rules, Rule(f.is().and(fromInside(expr.CmpOpEq)).and(share).and(
			logFamily.match()).and(log(reason))))
	}
	return append(rules, Rule(fromInside(expr.CmpOpNeq).and(match(logDropsOfAll(reason)))))
}

// logDropsOfAll returns a rule that sends packets of all sources to a listener of nflog, without
// shares.
func logDropsOfAll(reason string) Rule { return Rule(logOutside.match().and(log(reason))) }

// log sends packets to the listener of nflog.
func log(reason string) match {
	return match{fmt.Sprintf("log group %d prefix %s", abi.NFLogPolicy, reason), encode(&expr.Log{
		Key:   1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_PREFIX | 1<<unix.NFTA_LOG_SNAPLEN,
		Group: abi.NFLogPolicy, Snaplen: LogBytes, Data: []byte(reason)})}
}

func (b bucket) text() string {
	return fmt.Sprintf("limit rate %d/second burst %d packets", b.rate, b.burst)
}

func (b bucket) limit() expr.Any {
	return &expr.Limit{Type: expr.LimitTypePkts, Rate: uint64(b.rate), Unit: expr.LimitTimeSecond,
		Burst: b.burst}
}

// match matches packets within the limit.
func (b bucket) match() match { return match{b.text(), encode(b.limit())} }

// fromInside matches packets that come in by a pod's link or out of a tunnel. With CmpOpNeq it
// matches all others. The link groups of pods and tunnels differ in one bit.
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
