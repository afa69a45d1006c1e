// Package packet holds the engine's operations on IP packets: parse, copy ECN marks, split
// superpackets of a TUN into segments, and coalesce segments into superpackets. All functions are
// pure: bytes in, bytes out.
//
//	TUN ── vnet header + superpacket ──→ Parse ─→ Super ── Segment(i) ──→ one packet each, checksums right
//	TUN ←── Writer.Write(iovec) ── Coalescer.Add ←─ one packet each, authentic
//
// The formats are defined in include/uapi/linux/virtio_net.h, RFC 791, RFC 8200, RFC 9293 and RFC
// 768.
//
// It promises:
//   - A malformed packet results in a Reason and has no other effect.
//   - The lengths of headers come from the packet, never from hdr_len of the vnet header, which the
//     kernel sets to the length of the first fragment when it forwards.
//   - Packets of one inner flow keep their order.
//   - A datagram over UDP never gets the checksum 0, which means that there is none (RFC 768).
//
// It does not verify the inner checksums of packets that it coalesces, as the kernel's WireGuard
// does not. The AEAD has proven that a packet is as the peer sent it.
//
// Start reading at Parse and at Coalescer.Add.
package packet
