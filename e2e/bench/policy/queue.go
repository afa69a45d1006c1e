package policy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/pod"
)

// queue is a stand-in for the shape of kube-network-policies: its table sends the first packets of
// each connection to a Go program by NFQUEUE, and the program says what becomes of them. This one
// accepts all at once: it parses no packet and asks no policy, so the real one costs more.
type queue struct {
	conn *netlink.Conn
	// accepted counts packets.
	accepted atomic.Uint64
	ended    chan struct{}
}

// Messages and attributes of linux/netfilter/nfnetlink_queue.h.
const (
	queuePacket, queueVerdict, queueConfig = 3 << 8, 3<<8 | 1, 3<<8 | 2 // NFNL_SUBSYS_QUEUE
	queueCommand, queueParams              = 1, 2                       // NFQA_CFG_CMD, …_PARAMS
	queueBind, queueCopyPacket             = 1, 2
	queueHeader, queueVerdictHeader        = 1, 2 // NFQA_PACKET_HDR, NFQA_VERDICT_HDR
	queueAccept                            = 1    // NF_ACCEPT
	queueNumber                            = 100
	// queueCopied is how much of a packet the program gets, bytes: the headers.
	queueCopied = 128
	// sizeofNfgenmsg is that of struct nfgenmsg, before the attributes.
	sizeofNfgenmsg = 4
)

// judgeQueue is a judge that asks the program. The program must be there before the first packet.
func judgeQueue(l *lane, _ pod.Paths) error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return fmt.Errorf("open NFQUEUE: %w", err)
	}
	l.queue = &queue{conn: conn, ended: make(chan struct{})}
	if err := l.queue.bind(); err != nil {
		return errors.Join(fmt.Errorf("bind NFQUEUE: %w", err), conn.Close())
	}
	go func() {
		defer close(l.queue.ended)
		_ = l.queue.run() // Its end is that of the connection; without answers a lane fails.
	}()
	l.undo.Add(l.queue.close)
	return queueRules()
}

// queueRules sends the packets of connections that are not established to the program, in the
// calling thread's namespace. The target of iptables does the same as nft's expression, and is on
// kernels without CONFIG_NFT_QUEUE too.
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
	// struct xt_NFQ_info_v3: queuenum, queues_total and flags, padded to 8 bytes.
	info := xt.Unknown(binary.NativeEndian.AppendUint16(nil, queueNumber))
	info = append(binary.NativeEndian.AppendUint16(info, 1), 0, 0, 0, 0)
	c.AddRule(&nftables.Rule{Table: t, Chain: ch,
		Exprs: []expr.Any{&expr.Target{Name: "NFQUEUE", Rev: 3, Info: &info}}})
	if err := c.Flush(); err != nil {
		return fmt.Errorf("add rules for NFQUEUE: %w", err)
	}
	return nil
}

func (q *queue) bind() error {
	e := netlink.NewAttributeEncoder()
	e.Bytes(queueCommand, []byte{queueBind, 0, 0, 0})
	e.Bytes(queueParams, append(binary.BigEndian.AppendUint32(nil, queueCopied), queueCopyPacket))
	attributes, err := e.Encode()
	if err != nil {
		return err
	}
	_, err = q.conn.Execute(netlink.Message{
		Header: netlink.Header{Type: queueConfig, Flags: netlink.Request | netlink.Acknowledge},
		Data:   append(queueOf(queueNumber), attributes...)})
	return err
}

// queueOf is the struct nfgenmsg of a message about a queue.
func queueOf(number uint16) []byte {
	return binary.BigEndian.AppendUint16([]byte{unix.AF_UNSPEC, 0}, number)
}

// run accepts packets until the queue is closed.
func (q *queue) run() error {
	for {
		messages, err := q.conn.Receive()
		if err != nil {
			return err
		}
		for _, m := range messages {
			id, ok := packetID(m)
			if !ok {
				continue
			}
			if err := q.accept(id); err != nil {
				return err
			}
		}
	}
}

// packetID returns the number of a packet that waits for a verdict, as the kernel sent it.
func packetID(m netlink.Message) (id []byte, ok bool) {
	if m.Header.Type != queuePacket || len(m.Data) < sizeofNfgenmsg {
		return nil, false
	}
	attributes, err := netlink.NewAttributeDecoder(m.Data[sizeofNfgenmsg:])
	if err != nil {
		return nil, false
	}
	for attributes.Next() {
		if b := attributes.Bytes(); attributes.Type() == queueHeader && len(b) >= 4 {
			return b[:4], true
		}
	}
	return nil, false
}

func (q *queue) accept(id []byte) error {
	e := netlink.NewAttributeEncoder()
	e.Bytes(queueVerdictHeader, append(binary.BigEndian.AppendUint32(nil, queueAccept), id...))
	attributes, err := e.Encode()
	if err != nil {
		return err
	}
	// The connection may be over before Send returns.
	q.accepted.Add(1)
	_, err = q.conn.Send(netlink.Message{
		Header: netlink.Header{Type: queueVerdict, Flags: netlink.Request},
		Data:   append(queueOf(queueNumber), attributes...)})
	return err
}

// close ends the program.
func (q *queue) close() error {
	err := q.conn.Close()
	<-q.ended
	return err
}
