// Package nfqueue delays packets by NFQUEUE (linux/netfilter/nfnetlink_queue.h), in the network
// namespace of the calling thread.
//
// It promises to accept every packet that it receives, in order, after the same delay for all. It
// parses no packet. The kernel drops packets that still wait when a queue is closed.
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

// Queue is bound to a queue number of a network namespace.
type Queue struct {
	number uint16
	delay  time.Duration
	conn   *netlink.Conn
	// waiting holds packets that arrived and were not accepted yet.
	waiting  chan packet
	accepted atomic.Uint64
	ended    sync.WaitGroup
}

// packet is a waiting packet. id is its number in the bytes that the kernel sent.
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
	// most is the number of packets that may wait in the kernel. The kernel drops further packets.
	most = 16_384
	// sizeofNfgenmsg is the size of struct nfgenmsg, which precedes the attributes.
	sizeofNfgenmsg = 4
)

// Open binds a queue number. It accepts each packet after delay; zero means at once. Open the queue
// before the first packet reaches it, because the kernel drops packets of an unbound queue.
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
		for q.receive() == nil { // Close ends the connection, so receive returns an error
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

// Target returns the expression of a rule that sends packets to a queue. It uses the target of
// iptables, which also exists on kernels without nft's queue expression (CONFIG_NFT_QUEUE).
func Target(number uint16) expr.Any {
	// struct xt_NFQ_info_v3: queuenum, queues_total and flags, padded to 8 bytes.
	info := xt.Unknown(binary.NativeEndian.AppendUint16(nil, number))
	info = append(binary.NativeEndian.AppendUint16(info, 1), 0, 0, 0, 0)
	return &expr.Target{Name: "NFQUEUE", Rev: 3, Info: &info}
}

// Accepted returns the number of packets that the queue has accepted.
func (q *Queue) Accepted() uint64 { return q.accepted.Load() }

// Close unbinds the queue and waits until its goroutines have ended.
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

// header returns the struct nfgenmsg of a message about the queue.
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
	// Count before Send, because the packet's connection may already be over when Send returns.
	q.accepted.Add(1)
	_, err = q.conn.Send(netlink.Message{
		Header: netlink.Header{Type: messageVerdict, Flags: netlink.Request},
		Data:   append(q.header(), attributes...)})
	return err
}
