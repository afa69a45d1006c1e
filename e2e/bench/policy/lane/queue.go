package lane

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"

	"github.com/kubeveil/kubeveil/e2e/bench/nfqueue"
	"github.com/kubeveil/kubeveil/pkg/pod"
)

// queueNumber is the number of the NFQUEUE that stands in for kube-network-policies. The rules of
// kube-network-policies send the first packets of each connection by NFQUEUE to a Go program, which
// decides the verdict. The program here accepts all packets at once. It parses no packet and
// evaluates no policy, so the real program costs more.
const queueNumber = 100

// JudgeQueue is a Judge that starts the program and installs rules that send first packets to it.
func JudgeQueue(l *Lane, _ pod.Paths) (err error) {
	if l.Queue, err = nfqueue.Open(queueNumber, 0); err != nil {
		return err
	}
	l.undo.Add(l.Queue.Close)
	return queueRules()
}

// queueRules installs rules in the calling thread's namespace that send packets of connections that
// are not yet established to the program.
func queueRules() error {
	const established, related = 1 << 1, 1 << 2 // NF_CT_STATE_BIT
	c, err := nftables.New()
	if err != nil {
		return err
	}
	t := c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "kubeveil_bench_queue"})
	ch := c.AddChain(&nftables.Chain{Table: t, Name: "postrouting", Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityRef(95)})
	c.AddRule(&nftables.Rule{Table: t, Chain: ch, Exprs: []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(established | related), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
		&expr.Verdict{Kind: expr.VerdictAccept},
	}})
	c.AddRule(&nftables.Rule{Table: t, Chain: ch,
		Exprs: []expr.Any{nfqueue.Target(queueNumber)}})
	if err := c.Flush(); err != nil {
		return fmt.Errorf("add rules for NFQUEUE: %w", err)
	}
	return nil
}
