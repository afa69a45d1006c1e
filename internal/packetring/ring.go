// Package packetring reads the frames of links from a packet socket with a
// TPACKET_V3 ring (Documentation/networking/packet_mmap.rst).
//
// From the return of Open, every frame is in the ring or counts as dropped in Counts. A Ring is
// used by one goroutine at a time, but for Mute. Start reading at Open.
package packetring

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// BlockSize is the size of a block, bytes. The kernel fills blocks and hands them over when full or
// after RingConfig.Retire. A frame never crosses blocks, so a block must hold the largest: 64 KiB
// and its headers. A ring of Blocks that are handed over half empty lasts for Blocks times
// RingConfig.Retire, so small blocks bridge a longer standstill of the reader.
const BlockSize = 1 << 18

const frameSize = 1 << 11

// RingConfig selects what a Ring reads.
type RingConfig struct {
	// Link is the link to read. An empty string means all links of the namespace, including those
	// that appear later.
	Link string
	// Blocks is the size of the ring, in blocks; at least two.
	Blocks int
	// Retire is the time after which the kernel hands over a block that is not full.
	Retire time.Duration
	// Snap bounds the bytes that are kept of a frame. 0 means no limit.
	Snap int
	// Promiscuous makes Link receive frames to others, too.
	Promiscuous bool
}

// Frame is one link-layer frame.
type Frame struct {
	// Time is when the kernel saw it.
	Time time.Time
	// Index is the index of the link that it was seen on.
	Index int
	// Outgoing reports whether the link sent it (PACKET_OUTGOING). Otherwise it came in.
	Outgoing bool
	// Length is the length on the wire; Data may be shorter by RingConfig.Snap.
	Length int
	// Data begins at the link-layer header and has the VLAN tag in place that the
	// kernel keeps beside a packet.
	Data []byte
	// Truncated reports whether Data is shorter than the frame.
	Truncated bool
}

// Ring is a packet socket with its ring. Make one with Open, and close it.
type Ring struct {
	fd   int
	mem  []byte
	next int

	packets, dropped uint64
}

// Open opens a ring in the calling thread's network namespace.
func Open(o RingConfig) (*Ring, error) {
	// Protocol 0: nothing is received before the ring is there and the link is known.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open packet socket: %w", err)
	}
	r := &Ring{fd: fd}
	if err := r.open(o); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *Ring) open(o RingConfig) error {
	if err := unix.SetsockoptInt(r.fd, unix.SOL_PACKET, unix.PACKET_VERSION,
		unix.TPACKET_V3); err != nil {
		return fmt.Errorf("set TPACKET_V3: %w", err)
	}

	if o.Snap > 0 {
		if err := r.filter(uint32(o.Snap)); err != nil {
			return err
		}
	}

	req := unix.TpacketReq3{
		Block_size: BlockSize, Block_nr: uint32(o.Blocks),
		Frame_size: frameSize, Frame_nr: uint32(o.Blocks * (BlockSize / frameSize)),
		Retire_blk_tov: uint32(o.Retire.Milliseconds()),
	}
	if err := unix.SetsockoptTpacketReq3(r.fd, unix.SOL_PACKET, unix.PACKET_RX_RING,
		&req); err != nil {
		return fmt.Errorf("make ring of %d MiB: %w", o.Blocks*BlockSize>>20, err)
	}

	var err error
	if r.mem, err = unix.Mmap(r.fd, 0, o.Blocks*BlockSize, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED); err != nil {
		return fmt.Errorf("map ring: %w", err)
	}

	return r.bind(o)
}

func (r *Ring) bind(o RingConfig) error {
	addr := unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL)}
	if o.Link != "" {
		link, err := net.InterfaceByName(o.Link)
		if err != nil {
			return err
		}
		addr.Ifindex = link.Index
	}
	if o.Promiscuous {
		mreq := unix.PacketMreq{Ifindex: int32(addr.Ifindex), Type: unix.PACKET_MR_PROMISC}
		if err := unix.SetsockoptPacketMreq(r.fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP,
			&mreq); err != nil {
			return fmt.Errorf("set promiscuous: %w", err)
		}
	}
	if err := unix.Bind(r.fd, &addr); err != nil {
		return fmt.Errorf("bind packet socket: %w", err)
	}
	return nil
}

// Close frees the ring. Frames of it are not valid any more.
func (r *Ring) Close() error {
	var err error
	if r.mem != nil {
		err = unix.Munmap(r.mem)
		r.mem = nil
	}
	return errors.Join(err, unix.Close(r.fd))
}

// Mute filters all frames from now on. They do not count as dropped.
func (r *Ring) Mute() error { return r.filter(0) }

// filter keeps the first snap bytes of each frame. 0 drops all frames.
func (r *Ring) filter(snap uint32) error {
	ret := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: snap}
	prog := unix.SockFprog{Len: 1, Filter: &ret}
	if err := unix.SetsockoptSockFprog(r.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&prog); err != nil {
		return fmt.Errorf("attach filter: %w", err)
	}
	return nil
}

// Wait waits for a full block, at most for limit. down reports whether a link went down or
// disappeared meanwhile. Its frames are in the ring, and the kernel goes on when it is up again.
// The kernel hands over each block within RingConfig.Retire: when a much longer Wait ends without
// one, the ring holds no frame.
func (r *Ring) Wait(limit time.Duration) (full, down bool, err error) {
	fds := []unix.PollFd{{Fd: int32(r.fd), Events: unix.POLLIN | unix.POLLERR}}
	n, err := unix.Poll(fds, int(limit.Milliseconds()))
	if errors.Is(err, unix.EINTR) {
		return true, false, nil // look again
	}
	if err != nil {
		return false, false, fmt.Errorf("poll packet socket: %w", err)
	}
	if fds[0].Revents&unix.POLLERR == 0 {
		return n > 0, false, nil
	}

	// Reading the error clears it.
	code, err := unix.GetsockoptInt(r.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return true, false, fmt.Errorf("read socket error: %w", err)
	}
	if e := unix.Errno(code); code != 0 && e != unix.ENETDOWN {
		return true, false, fmt.Errorf("packet socket: %w", e)
	}
	return true, true, nil
}

// Drain hands each frame of all full blocks to fn and gives the blocks back to the
// kernel. A frame's Data is valid during fn only.
func (r *Ring) Drain(fn func(Frame)) {
	for {
		block := r.mem[r.next*BlockSize:][:BlockSize]
		// tpacket_hdr_v1 is behind version and offset_to_priv.
		desc := (*unix.TpacketHdrV1)(unsafe.Pointer(&block[8]))
		// The kernel writes the status last; an atomic load orders what follows.
		if atomic.LoadUint32(&desc.Block_status)&unix.TP_STATUS_USER == 0 {
			return
		}

		at := desc.Offset_to_first_pkt
		for range desc.Num_pkts {
			h := (*unix.Tpacket3Hdr)(unsafe.Pointer(&block[at]))
			fn(frameAt(block, at, h))
			at += h.Next_offset
		}
		atomic.StoreUint32(&desc.Block_status, unix.TP_STATUS_KERNEL)
		r.next = (r.next + 1) % (len(r.mem) / BlockSize)
	}
}

func frameAt(block []byte, at uint32, h *unix.Tpacket3Hdr) Frame {
	addr := (*unix.RawSockaddrLinklayer)(unsafe.Pointer(
		&block[at+align(uint32(unsafe.Sizeof(*h)))]))
	data := block[at+uint32(h.Mac):][:h.Snaplen:h.Snaplen]
	if h.Status&unix.TP_STATUS_VLAN_VALID != 0 && len(data) >= 12 {
		tpid := uint16(unix.ETH_P_8021Q)
		if h.Status&unix.TP_STATUS_VLAN_TPID_VALID != 0 {
			tpid = h.Hv1.Vlan_tpid
		}
		tci := uint16(h.Hv1.Vlan_tci)
		data = slices.Insert(data, 12, byte(tpid>>8), byte(tpid), byte(tci>>8), byte(tci))
	}
	return Frame{
		Time: time.Unix(int64(h.Sec), int64(h.Nsec)), Index: int(addr.Ifindex),
		Outgoing: addr.Pkttype == unix.PACKET_OUTGOING, Length: int(h.Len), Data: data,
		Truncated: h.Snaplen < h.Len,
	}
}

// Counts returns how many frames came since Open, dropped ones included, and how
// many of them the kernel dropped because the ring was full (PACKET_STATISTICS).
func (r *Ring) Counts() (packets, dropped uint64, err error) {
	s, err := unix.GetsockoptTpacketStatsV3(r.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		return r.packets, r.dropped, fmt.Errorf("read packet statistics: %w", err)
	}
	r.packets += uint64(s.Packets) // reading sets the kernel's to 0
	r.dropped += uint64(s.Drops)
	return r.packets, r.dropped, nil
}

func align(n uint32) uint32 {
	return (n + unix.TPACKET_ALIGNMENT - 1) &^ (unix.TPACKET_ALIGNMENT - 1)
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }
