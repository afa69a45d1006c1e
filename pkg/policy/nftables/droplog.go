package nftables

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nflog"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables/chains"
)

// DropLog receives the packets that the rules of logDrops report, from the network namespace in
// which it was opened. Close it at the end.
type DropLog struct{ conn *nflog.Conn }

// Dropped is a packet that a chain of the tables dropped.
type Dropped struct {
	// Flow has neither FromPod nor ToPod: the kernel does not report them.
	policy.Flow
	// Reason is the name of the counter.
	Reason string
	Packet nflog.Packet
}

// OpenDropLog opens the listener of the nflog group in the calling thread's network namespace. Only
// one listener can exist; the error of a second one matches unix.EPERM.
func OpenDropLog() (*DropLog, error) {
	c, err := nflog.Open(abi.NFLogPolicy, chains.LogBytes)
	if err != nil {
		return nil, err
	}
	return &DropLog{c}, nil
}

// Receive waits for dropped packets. It leaves out packets without an IP header, and packets that
// another program logs.
func (l *DropLog) Receive() (out []Dropped, err error) {
	packets, err := l.conn.Receive()
	for _, p := range packets {
		if d, ok := droppedBy(p); ok {
			out = append(out, d)
		}
	}
	return out, err
}

// Close closes the listener. A Receive that waits returns.
func (l *DropLog) Close() error { return l.conn.Close() }

// droppedBy returns the drop that a packet was logged for.
func droppedBy(p nflog.Packet) (d Dropped, ok bool) {
	if !p.Src.IsValid() || !slices.Contains(DropReasons(), p.Prefix) {
		return d, false
	}
	d.Reason, d.Packet = p.Prefix, p
	d.Flow = policy.Flow{Src: p.Src, Dst: p.Dst, Proto: policy.Proto(p.Proto), Port: p.DstPort,
		ToNode: p.Hook == unix.NF_INET_LOCAL_IN}
	return d, true
}
