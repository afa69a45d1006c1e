package nflog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Packet is the log message of a rule about one packet.
type Packet struct {
	// Prefix is the log prefix of the rule.
	Prefix string
	// Hook is the hook of netfilter, NF_INET_….
	Hook byte
	// In and Out are the indexes of the links on which the packet arrived and would have left. 0
	// means that there is no such link.
	In, Out int
	// Headers is zero if the packet's headers cannot be read.
	Headers
}

// Messages and attributes of linux/netfilter/nfnetlink_log.h.
const (
	ulogPacket, ulogConfig    = unix.NFNL_SUBSYS_ULOG << 8, unix.NFNL_SUBSYS_ULOG<<8 | 1
	configCommand, configMode = 1, 2 // NFULA_CFG_CMD, NFULA_CFG_MODE
	configThreshold           = 5    // NFULA_CFG_QTHRESH
	commandBind, copyPacket   = 1, 2 // NFULNL_CFG_CMD_BIND, NFULNL_COPY_PACKET
	attrHeader                = 1    // NFULA_PACKET_HDR
	attrIn, attrOut           = 4, 5 // NFULA_IFINDEX_INDEV, NFULA_IFINDEX_OUTDEV
	attrPayload, attrPrefix   = 9, 10
	genericSize, hookOfPacket = 4, 2 // struct nfgenmsg; hook in struct nfulnl_msg_packet_hdr
)

// waitingSize is the size of the socket's receive buffer in bytes. The kernel charges a page for
// each packet.
const waitingSize = 1 << 20

// Conn listens to a group. The caller must close it.
type Conn struct{ conn *netlink.Conn }

// Open listens to a group in the calling thread's network namespace. snaplen is the maximum
// number of bytes that it receives of each packet; a rule may send fewer. If the group already has
// a listener, the error matches unix.EPERM.
func Open(group uint16, snaplen uint32) (*Conn, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("listen to nflog: %w", err)
	}
	// A slow listener misses packets without an error.
	err = errors.Join(c.SetOption(netlink.NoENOBUFS, true), c.SetReadBuffer(waitingSize))
	if err == nil {
		err = bind(c, group, snaplen)
	}
	if errors.Is(err, unix.EPERM) {
		err = fmt.Errorf("another program listens to group %d of nflog, end it: %w", group, err)
	} else if err != nil {
		err = fmt.Errorf("listen to group %d of nflog, which needs the kernel module "+
			"nfnetlink_log: %w", group, err)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &Conn{c}, nil
}

func bind(c *netlink.Conn, group uint16, snaplen uint32) error {
	e := netlink.NewAttributeEncoder()
	e.Bytes(configCommand, []byte{commandBind})
	e.Bytes(configMode, append(binary.BigEndian.AppendUint32(nil, snaplen), copyPacket, 0))
	// Receive one packet per message, because the end of a batch may look like an error.
	e.Bytes(configThreshold, binary.BigEndian.AppendUint32(nil, 1))
	attributes, err := e.Encode()
	if err != nil {
		return err
	}
	header := binary.BigEndian.AppendUint16([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0}, group)
	_, err = c.Execute(netlink.Message{
		Header: netlink.Header{Type: ulogConfig, Flags: netlink.Request | netlink.Acknowledge},
		Data:   append(header, attributes...)})
	return err
}

// Receive waits for packets and returns them. It ignores messages that it cannot read.
func (c *Conn) Receive() (packets []Packet, err error) {
	messages, err := c.conn.Receive()
	if err != nil {
		return nil, fmt.Errorf("receive from nflog: %w", err)
	}
	for _, m := range messages {
		if m.Header.Type != ulogPacket {
			continue
		}
		if p, ok := read(m.Data); ok {
			packets = append(packets, p)
		}
	}
	return packets, nil
}

// Close closes the listener. A blocked Receive then returns an error.
func (c *Conn) Close() error { return c.conn.Close() }

// read parses a message about one packet. The message begins with a struct nfgenmsg.
func read(message []byte) (p Packet, ok bool) {
	if len(message) < genericSize {
		return p, false
	}
	attributes, err := netlink.NewAttributeDecoder(message[genericSize:])
	if err != nil {
		return p, false
	}
	for attributes.Next() {
		switch b := attributes.Bytes(); attributes.Type() {
		case attrHeader:
			if len(b) > hookOfPacket {
				p.Hook = b[hookOfPacket]
			}
		case attrIn:
			p.In = index(b)
		case attrOut:
			p.Out = index(b)
		case attrPayload:
			p.Headers, _ = ReadHeaders(b)
		case attrPrefix:
			p.Prefix = strings.TrimRight(string(b), "\x00")
		}
	}
	return p, attributes.Err() == nil
}

func index(b []byte) int {
	if len(b) != 4 {
		return 0
	}
	return int(binary.BigEndian.Uint32(b))
}
