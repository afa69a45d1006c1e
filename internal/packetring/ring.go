// Package packetring reads the frames of links from a packet socket with a
// TPACKET_V3 ring (Documentation/networking/packet_mmap.rst).
//
// After Open returns, every frame is in the ring or counts as dropped in Counts. Only one goroutine
// at a time may use a Ring, except that Mute may be called from any goroutine. Start reading at
// Open.
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

// BlockSize is the size of a block in bytes. The kernel releases a block to the reader when the
// block is full, or after RingConfig.Retire. A frame never spans two blocks, so a block must be
// large enough for the largest frame: 64 KiB and its headers. With little traffic, the ring is full
// after Blocks times RingConfig.Retire without a reader. So many small blocks bridge a longer pause
// of the reader than few large ones.
const BlockSize = 1 << 18

const frameSize = 1 << 11

// RingConfig selects what a Ring reads.
type RingConfig struct {
	// Link is the link to read. An empty string means all links of the namespace, including those
	// that appear later.
	Link string
	// Blocks is the size of the ring in blocks. It must be at least 2.
	Blocks int
	// Retire is the time after which the kernel releases a block that is not full.
	Retire time.Duration
	// Snap bounds the bytes that are kept of a frame. 0 means no limit.
	Snap int
	// Promiscuous makes Link receive frames for other destinations too.
	Promiscuous bool
}

// Frame is one link-layer frame.
type Frame struct {
	// Time is the time at which the kernel saw the frame.
	Time time.Time
	// Index is the index of the link.
	Index int
	// Outgoing reports whether the link sent the frame (PACKET_OUTGOING). Otherwise the link
	// received the frame.
	Outgoing bool
	// Length is the length on the wire. With RingConfig.Snap, Data may be shorter.
	Length int
	// Data begins with the link-layer header. It includes the VLAN tag, which the kernel stores
	// outside the packet.
	Data []byte
}

// Ring is a packet socket with its ring. Open returns a Ring, which the caller must close.
type Ring struct {
	fd   int
	mem  []byte
	next int

	packets, dropped uint64
}

// Open opens a ring in the calling thread's network namespace.
func Open(o RingConfig) (*Ring, error) {
	// With protocol 0, the socket receives nothing until bind.
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

// Close frees the ring. The data of its frames must not be used afterwards.
func (r *Ring) Close() error {
	var err error
	if r.mem != nil {
		err = unix.Munmap(r.mem)
		r.mem = nil
	}
	return errors.Join(err, unix.Close(r.fd))
}

// Mute makes the socket ignore all further frames. They do not count as dropped.
func (r *Ring) Mute() error { return r.filter(0) }

// filter makes the socket keep only the first snap bytes of each frame. 0 makes it ignore all
// frames.
func (r *Ring) filter(snap uint32) error {
	ret := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: snap}
	prog := unix.SockFprog{Len: 1, Filter: &ret}
	if err := unix.SetsockoptSockFprog(r.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&prog); err != nil {
		return fmt.Errorf("attach filter: %w", err)
	}
	return nil
}

// Wait waits for a released block, at most for limit. full reports whether there may be one. down
// reports whether a link went down or disappeared. The frames of that link are in the ring, and the
// kernel continues when the link is up again. The kernel releases each block within
// RingConfig.Retire, so if a much longer Wait returns without a block, the ring has no frames.
func (r *Ring) Wait(limit time.Duration) (full, down bool, err error) {
	fds := []unix.PollFd{{Fd: int32(r.fd), Events: unix.POLLIN | unix.POLLERR}}
	n, err := unix.Poll(fds, int(limit.Milliseconds()))
	if errors.Is(err, unix.EINTR) {
		return true, false, nil // the caller checks the ring
	}
	if err != nil {
		return false, false, fmt.Errorf("poll packet socket: %w", err)
	}
	if fds[0].Revents&unix.POLLERR == 0 {
		return n > 0, false, nil
	}

	// Reading the error clears it, so that the next poll waits.
	code, err := unix.GetsockoptInt(r.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return true, false, fmt.Errorf("read socket error: %w", err)
	}
	if e := unix.Errno(code); code != 0 && e != unix.ENETDOWN {
		return true, false, fmt.Errorf("packet socket: %w", e)
	}
	return true, true, nil
}

// Drain calls fn with each frame of all released blocks and returns the blocks to the kernel. Data
// of a frame is valid only during fn.
func (r *Ring) Drain(fn func(Frame)) {
	for {
		block := r.mem[r.next*BlockSize:][:BlockSize]
		// In the block, tpacket_hdr_v1 follows version and offset_to_priv.
		desc := (*unix.TpacketHdrV1)(unsafe.Pointer(&block[8]))
		// The kernel writes the status last. The atomic load orders the reads below.
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
	}
}

// Counts returns the number of frames since Open, including dropped frames, and the number of
// frames that the kernel dropped because the ring was full (PACKET_STATISTICS).
func (r *Ring) Counts() (packets, dropped uint64, err error) {
	s, err := unix.GetsockoptTpacketStatsV3(r.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		return r.packets, r.dropped, fmt.Errorf("read packet statistics: %w", err)
	}
	r.packets += uint64(s.Packets) // reading resets the kernel's counters
	r.dropped += uint64(s.Drops)
	return r.packets, r.dropped, nil
}

func align(n uint32) uint32 {
	return (n + unix.TPACKET_ALIGNMENT - 1) &^ (unix.TPACKET_ALIGNMENT - 1)
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }
