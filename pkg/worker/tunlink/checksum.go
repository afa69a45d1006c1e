package tunlink

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/tun"
)

const (
	ipv6Header = 40
	udpHeader  = 8
	udpCheck   = 6 // offset of the checksum in a UDP header
)

// summedTUN is a TUN for wireguard-go that corrects UDP checksums over IPv6.
//
// The kernel leaves checksums to the device, and the library writes the computed checksum as it is.
// But a computed 0 must be written as 0xffff (RFC 768), because 0 means "no checksum". The
// receiver's kernel drops such a datagram (RFC 8200, section 8.1). This affects one in 65,536
// datagrams, and every repetition of it. Over IPv4 a datagram without a checksum is accepted.
type summedTUN struct{ tun.Device }

func (d summedTUN) Read(bufs [][]byte, sizes []int, offset int) (int, error) {
	n, err := d.Device.Read(bufs, sizes, offset)
	for i := range n {
		mendUDPChecksum(bufs[i][offset : offset+sizes[i]])
	}
	return n, err
}

// mendUDPChecksum replaces a UDP checksum of 0 by 0xffff if that is the right checksum. A datagram
// that has 0 because its sender requested no checksum (RFC 6935) is unchanged, since its right
// checksum is another, except for one in 65,536.
func mendUDPChecksum(packet []byte) {
	if len(packet) < ipv6Header+udpHeader || packet[0]>>4 != 6 || packet[6] != unix.IPPROTO_UDP {
		return
	}
	datagram := packet[ipv6Header:]
	check := datagram[udpCheck : udpCheck+2]
	if check[0] != 0 || check[1] != 0 {
		return
	}
	// The pseudo-header is the addresses, the length and the protocol (RFC 8200, section 8.1).
	if onesSum(packet[8:ipv6Header], uint64(len(datagram))+unix.IPPROTO_UDP+
		onesSum(datagram, 0)) == 0xffff {
		check[0], check[1] = 0xff, 0xff
	}
}

// onesSum adds the words of b to sum in ones' complement, folded to 16 bits (RFC 1071).
func onesSum(b []byte, sum uint64) uint64 {
	for ; len(b) > 1; b = b[2:] {
		sum += uint64(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint64(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return sum
}
