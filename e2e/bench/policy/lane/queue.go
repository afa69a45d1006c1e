package lane

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"

	"github.com/kubeveil/kubeveil/e2e/bench/nfqueue"
	"github.com/kubeveil/kubeveil/pkg/pod"
)

// queueNumber is the number of the queue that stands in for the shape of kube-network-policies. Its
// table sends the first packets of each connection to a Go program by NFQUEUE, which decides their
// verdict. This program accepts all at once: it parses no packet and evaluates no policy, so the
// real one costs more.
const queueNumber = 100

// JudgeQueue is a judge that sends packets to the program, which must run before the first packet.
func JudgeQueue(l *Lane, _ pod.Paths) (err error) {
	if l.Queue, err = nfqueue.Open(queueNumber, 0); err != nil {
		return err
	}
	l.undo.Add(l.Queue.Close)
	return queueRules()
}

// queueRules sends the packets of connections that are not established to the program, in the
// calling thread's namespace.
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
