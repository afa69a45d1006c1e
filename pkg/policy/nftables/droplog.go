package nftables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// DropLog receives the packets that the rules of logDrops report, from the network namespace in
// which it was opened. Close it at the end.
type DropLog struct{ conn *netlink.Conn }

// Dropped is a packet that a chain of the table dropped.
type Dropped struct {
	// Flow has neither FromPod nor ToPod: the kernel does not report them.
	policy.Flow
	// Reason is the name of the counter.
	Reason string
}

// Messages and attributes of linux/netfilter/nfnetlink_log.h.
const (
	ulogPacket, ulogConfig   = 4 << 8, 4<<8 | 1 // NFNL_SUBSYS_ULOG
	cfgCommand, cfgMode      = 1, 2             // NFULA_CFG_CMD, NFULA_CFG_MODE
	cfgThreshold             = 5                // NFULA_CFG_QTHRESH
	commandBind              = 1
	copyPacket               = 2
	attrHeader               = 1 // NFULA_PACKET_HDR
	attrPayload, attrPrefix  = 9, 10
	netfilterHeader, hookPos = 4, 2 // sizeof(struct nfgenmsg); hook in nfulnl_msg_packet_hdr
)

// OpenDropLog opens the listener of the nflog group in the calling thread's network namespace. Only
// one listener can exist; the error of a second one matches unix.EPERM.
func OpenDropLog() (*DropLog, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("listen to nflog: %w", err)
	}
	// A slow listener misses packets, and gets no error for it.
	if err = c.SetOption(netlink.NoENOBUFS, true); err == nil {
		err = bind(c)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen to group %d of nflog: %w", logGroup, err), c.Close())
	}
	return &DropLog{c}, nil
}

func bind(c *netlink.Conn) error {
	e := netlink.NewAttributeEncoder()
	e.Bytes(cfgCommand, []byte{commandBind})
	mode := binary.BigEndian.AppendUint32(nil, logSnaplen)
	e.Bytes(cfgMode, append(mode, copyPacket, 0))
	// One packet per message: the end of a batch may look like an error.
	e.Bytes(cfgThreshold, binary.BigEndian.AppendUint32(nil, 1))
	attributes, err := e.Encode()
	if err != nil {
		return err
	}
	header := []byte{unix.AF_UNSPEC, 0, logGroup >> 8, logGroup & 0xff}
	_, err = c.Execute(netlink.Message{
		Header: netlink.Header{Type: ulogConfig, Flags: netlink.Request | netlink.Acknowledge},
		Data:   append(header, attributes...)})
	return err
}

// Receive waits for dropped packets. It leaves out packets that it cannot read as the first packet
// of a flow.
func (l *DropLog) Receive() (out []Dropped, err error) {
	messages, err := l.conn.Receive()
	if err != nil {
		return nil, fmt.Errorf("receive from nflog: %w", err)
	}
	for _, m := range messages {
		if m.Header.Type != ulogPacket {
			continue
		}
		if d, ok := readDropped(m.Data); ok {
			out = append(out, d)
		}
	}
	return out, nil
}

// Close closes the listener. A Receive that waits returns.
func (l *DropLog) Close() error { return l.conn.Close() }

// readDropped reads a message about a packet, with the header of netfilter.
func readDropped(message []byte) (d Dropped, ok bool) {
	if len(message) < netfilterHeader {
		return d, false
	}
	attributes, err := netlink.NewAttributeDecoder(message[netfilterHeader:])
	if err != nil {
		return d, false
	}
	var packet []byte
	for attributes.Next() {
		switch b := attributes.Bytes(); attributes.Type() {
		case attrHeader:
			d.ToNode = len(b) > hookPos && b[hookPos] == unix.NF_INET_LOCAL_IN
		case attrPayload:
			packet = b
		case attrPrefix:
			d.Reason = reasonOf(strings.TrimRight(string(b), "\x00"))
		}
	}
	if attributes.Err() != nil || d.Reason == "" {
		return d, false
	}
	return d, readPacket(packet, &d.Flow)
}

// reasonOf returns the reason of drops that are logged with a prefix, or "" if another program
// wrote the prefix.
func reasonOf(prefix string) string {
	for _, d := range directions {
		if strings.HasPrefix(prefix, chainPrefix[d]) {
			return denied[d]
		}
	}
	for _, reason := range []string{admin, baseline, unknown} {
		if prefix == reason {
			return reason
		}
	}
	return ""
}

// readPacket reads addresses, protocol and destination port of a packet that begins with its
// network header. Behind extension headers of IPv6 it finds no port.
func readPacket(packet []byte, f *policy.Flow) bool {
	if len(packet) == 0 {
		return false
	}
	var size int
	switch packet[0] >> 4 {
	case 4:
		if size = int(packet[0]&0xf) * 4; size < 20 || len(packet) < size {
			return false
		}
		f.Src, f.Dst = netip.AddrFrom4([4]byte(packet[12:16])), netip.AddrFrom4([4]byte(packet[16:20]))
		f.Proto = policy.Proto(packet[9])
		if fragment := binary.BigEndian.Uint16(packet[6:]) & 0x1fff; fragment != 0 {
			return true
		}
	case 6:
		if size = 40; len(packet) < size {
			return false
		}
		f.Src, f.Dst = netip.AddrFrom16([16]byte(packet[8:24])), netip.AddrFrom16([16]byte(packet[24:40]))
		f.Proto = policy.Proto(packet[6])
	default:
		return false
	}

	switch f.Proto {
	case policy.TCP, policy.UDP, policy.SCTP:
		if len(packet) >= size+4 {
			f.Port = binary.BigEndian.Uint16(packet[size+2:])
		}
	}
	return true
}
