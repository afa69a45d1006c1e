// Package nfqueue lets a program decide when packets go on, by NFQUEUE
// (linux/netfilter/nfnetlink_queue.h), in the network namespace of the calling thread.
//
// It promises to accept every packet that it gets, after a delay that is the same for all, in
// order. It parses no packet. What waits when a queue is closed is dropped by the kernel.
//
// Start reading at Open.
package nfqueue

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Queue is bound to one number of a namespace.
type Queue struct {
	number uint16
	delay  time.Duration
	conn   *netlink.Conn
	// waiting are packets that arrived and were not accepted yet.
	waiting  chan packet
	accepted atomic.Uint64
	ended    sync.WaitGroup
}

// packet is known by its number, as the kernel sent it.
type packet struct {
	id  []byte
	due time.Time
}

// Messages and attributes of linux/netfilter/nfnetlink_queue.h.
const (
	messagePacket, messageVerdict, messageConfig = 3 << 8, 3<<8 | 1, 3<<8 | 2 // NFNL_SUBSYS_QUEUE
	configCommand, configParams, configLength    = 1, 2, 3                    // NFQA_CFG_CMD, …
	commandBind, paramsCopyPacket                = 1, 2
	attributeHeader, attributeVerdict            = 1, 2 // NFQA_PACKET_HDR, NFQA_VERDICT_HDR
	verdictAccept                                = 1    // NF_ACCEPT
	// copied is the number of bytes of a packet that the program receives: the headers.
	copied = 128
	// most is the number of packets that may wait in the kernel; it drops others.
	most = 16_384
	// sizeofNfgenmsg is the size of struct nfgenmsg, before the attributes.
	sizeofNfgenmsg = 4
)

// Open binds a queue number. Each packet is accepted after delay; zero accepts it at once. The
// queue must be open before the first packet, see Target.
func Open(number uint16, delay time.Duration) (*Queue, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("open NFQUEUE: %w", err)
	}
	q := &Queue{number: number, delay: delay, conn: conn, waiting: make(chan packet, most)}
	if err := q.bind(); err != nil {
		conn.Close()
		return nil, fmt.Errorf("bind NFQUEUE %d: %w", number, err)
	}

	q.ended.Go(func() {
		defer close(q.waiting)
		for q.receive() == nil { // the end of the connection is its error
		}
	})
	q.ended.Go(func() {
		for p := range q.waiting {
			time.Sleep(time.Until(p.due))
			_ = q.accept(p.id)
		}
	})
	return q, nil
}

// Target is the part of a rule that sends packets to a queue. The target of iptables does the same
// as nft's expression, and is on kernels without CONFIG_NFT_QUEUE too.
func Target(number uint16) expr.Any {
	// struct xt_NFQ_info_v3: queuenum, queues_total and flags, padded to 8 bytes.
	info := xt.Unknown(binary.NativeEndian.AppendUint16(nil, number))
	info = append(binary.NativeEndian.AppendUint16(info, 1), 0, 0, 0, 0)
	return &expr.Target{Name: "NFQUEUE", Rev: 3, Info: &info}
}

// Accepted returns how many packets went on.
func (q *Queue) Accepted() uint64 { return q.accepted.Load() }

// Close unbinds the queue and waits.
func (q *Queue) Close() error {
	err := q.conn.Close()
	q.ended.Wait()
	return err
}

func (q *Queue) bind() error {
	e := netlink.NewAttributeEncoder()
	e.Bytes(configCommand, []byte{commandBind, 0, 0, 0})
	e.Bytes(configParams, append(binary.BigEndian.AppendUint32(nil, copied), paramsCopyPacket))
	e.Bytes(configLength, binary.BigEndian.AppendUint32(nil, most))
	attributes, err := e.Encode()
	if err != nil {
		return err
	}
	_, err = q.conn.Execute(netlink.Message{
		Header: netlink.Header{Type: messageConfig, Flags: netlink.Request | netlink.Acknowledge},
		Data:   append(q.header(), attributes...)})
	return err
}

// header is the struct nfgenmsg of a message about the queue.
func (q *Queue) header() []byte {
	return binary.BigEndian.AppendUint16([]byte{unix.AF_UNSPEC, 0}, q.number)
}

func (q *Queue) receive() error {
	messages, err := q.conn.Receive()
	if err != nil {
		return err
	}
	due := time.Now().Add(q.delay)
	for _, m := range messages {
		id, ok := packetID(m)
		switch {
		case !ok:
		case q.delay > 0:
			q.waiting <- packet{id, due}
		default:
			err = errors.Join(err, q.accept(id))
		}
	}
	return err
}

// packetID returns the number of a packet that waits for a verdict.
func packetID(m netlink.Message) (id []byte, ok bool) {
	if m.Header.Type != messagePacket || len(m.Data) < sizeofNfgenmsg {
		return nil, false
	}
	attributes, err := netlink.NewAttributeDecoder(m.Data[sizeofNfgenmsg:])
	if err != nil {
		return nil, false
	}
	for attributes.Next() {
		if b := attributes.Bytes(); attributes.Type() == attributeHeader && len(b) >= 4 {
			return b[:4], true
		}
	}
	return nil, false
}

func (q *Queue) accept(id []byte) error {
	e := netlink.NewAttributeEncoder()
	e.Bytes(attributeVerdict, append(binary.BigEndian.AppendUint32(nil, verdictAccept), id...))
	attributes, err := e.Encode()
	if err != nil {
		return err
	}
	// The connection that the packet is of may be over before Send returns.
	q.accepted.Add(1)
	_, err = q.conn.Send(netlink.Message{
		Header: netlink.Header{Type: messageVerdict, Flags: netlink.Request},
		Data:   append(q.header(), attributes...)})
	return err
}
