package leak

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Size of a ring: memory for bursts that the reader, which shares its CPU with what it watches,
// cannot follow at once. A block must hold the largest frame.
const (
	blockSize  = 1 << 20
	ringBlocks = 48
	retireMS   = 20
)

// ring is a packet socket with a TPACKET_V3 ring on one link
// (Documentation/networking/packet_mmap.rst).
type ring struct {
	link   string
	fd     int
	blocks []byte
	next   int

	judged           atomic.Uint64 // frames that were handed out
	packets, dropped uint64        // by the kernel's count; the reader's own
	told             uint64        // of dropped, what lost has given
	takes            chan chan<- error
}

// openRing opens a ring of some blocks on a link of the calling thread's network namespace; from
// its return every frame of the link is in it.
func openRing(link string, blocks int) (*ring, error) {
	i, err := net.InterfaceByName(link)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", link, err)
	}
	// Protocol 0: nothing is received before the ring is there and the link is known.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("watch %s: open packet socket: %w", link, err)
	}
	r := &ring{link: link, fd: fd, takes: make(chan chan<- error)}
	if err := r.setup(i.Index, blocks); err != nil {
		return nil, errors.Join(fmt.Errorf("watch %s: %w", link, err), r.close())
	}
	return r, nil
}

func (r *ring) setup(index, blocks int) error {
	if err := unix.SetsockoptInt(r.fd, unix.SOL_PACKET, unix.PACKET_VERSION,
		unix.TPACKET_V3); err != nil {
		return fmt.Errorf("set TPACKET_V3: %w", err)
	}
	req := unix.TpacketReq3{Block_size: blockSize, Block_nr: uint32(blocks), Frame_size: blockSize,
		Frame_nr: uint32(blocks), Retire_blk_tov: retireMS}
	if err := unix.SetsockoptTpacketReq3(r.fd, unix.SOL_PACKET, unix.PACKET_RX_RING,
		&req); err != nil {
		return fmt.Errorf("make ring: %w", err)
	}
	var err error
	if r.blocks, err = unix.Mmap(r.fd, 0, blockSize*blocks, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED); err != nil {
		return fmt.Errorf("map ring: %w", err)
	}
	all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
	if err := unix.Bind(r.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: index}); err != nil {
		return fmt.Errorf("bind packet socket: %w", err)
	}
	return nil
}

func (r *ring) close() error {
	var err error
	if r.blocks != nil {
		err = unix.Munmap(r.blocks)
		r.blocks = nil
	}
	return errors.Join(err, unix.Close(r.fd))
}

// wait waits for a block, at most for some milliseconds.
func (r *ring) wait(ms int) {
	fds := []unix.PollFd{{Fd: int32(r.fd), Events: unix.POLLIN}}
	if _, err := unix.Poll(fds, ms); err == nil && fds[0].Revents&unix.POLLERR != 0 {
		// The link went down or away. What it carried is in the ring; reading the error clears it.
		_, _ = unix.GetsockoptInt(r.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	}
}

// drain hands each frame of all full blocks to fn and gives the blocks back. The frame is valid
// during fn only.
func (r *ring) drain(fn func(frame []byte)) {
	for {
		block := r.blocks[r.next*blockSize : (r.next+1)*blockSize]
		desc := (*unix.TpacketHdrV1)(unsafe.Pointer(&block[descOffset]))
		// The kernel writes the status last; an atomic load orders what follows.
		if atomic.LoadUint32(&desc.Block_status)&unix.TP_STATUS_USER == 0 {
			return
		}
		at := desc.Offset_to_first_pkt
		for range desc.Num_pkts {
			h := (*unix.Tpacket3Hdr)(unsafe.Pointer(&block[at]))
			start := at + uint32(h.Mac)
			r.judged.Add(1)
			fn(withTag(h, block[start:start+h.Snaplen]))
			at += h.Next_offset
		}
		atomic.StoreUint32(&desc.Block_status, unix.TP_STATUS_KERNEL)
		r.next = (r.next + 1) % (len(r.blocks) / blockSize)
	}
}

// descOffset is where tpacket_hdr_v1 is in a block: behind version and offset_to_priv.
const descOffset = 8

// withTag puts the VLAN tag back into the frame, which the kernel keeps beside it.
func withTag(h *unix.Tpacket3Hdr, frame []byte) []byte {
	if h.Status&unix.TP_STATUS_VLAN_VALID == 0 || len(frame) < ethernetLen {
		return frame
	}
	tpid := uint16(etherVLAN)
	if h.Status&unix.TP_STATUS_VLAN_TPID_VALID != 0 {
		tpid = h.Hv1.Vlan_tpid
	}
	tagged := append(make([]byte, 0, len(frame)+vlanLen), frame[:12]...)
	tagged = binary.BigEndian.AppendUint16(tagged, tpid)
	tagged = binary.BigEndian.AppendUint16(tagged, uint16(h.Hv1.Vlan_tci))
	return append(tagged, frame[12:]...)
}

// count adds the kernel's counts since the last call; it says whether every frame that the kernel
// kept was handed out.
func (r *ring) count() (complete bool, err error) {
	s, err := unix.GetsockoptTpacketStatsV3(r.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		return false, fmt.Errorf("read statistics of %s: %w", r.link, err)
	}
	r.packets += uint64(s.Packets)
	r.dropped += uint64(s.Drops)
	return r.judged.Load() >= r.packets-r.dropped, nil
}
