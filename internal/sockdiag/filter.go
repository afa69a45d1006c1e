package sockdiag

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

const (
	// Values of linux/inet_diag.h: the attribute with the filter program, and two operations.
	reqBytecode = 1
	destination = 8 // INET_DIAG_BC_D_COND
	jump        = 1 // INET_DIAG_BC_JMP

	sizeofOp   = 4 // struct inet_diag_bc_op
	sizeofCond = 8 // struct inet_diag_hostcond without its address

	// mostRemotes bounds the remotes of a filter, whose length is a field of 16 bits.
	mostRemotes = 1024
)

// filter returns a filter program for inet_diag (inet_diag_bc_run in net/ipv4/inet_diag.c). It
// selects the sockets that are connected to one of remotes. An IPv4 remote also matches as a mapped
// address. Remotes after the first mostRemotes are left out.
//
// An operation has two offsets, in bytes from its own start. If it matches, the program continues
// at the offset "yes", otherwise at "no". "yes" has 8 bits and must be the length of the operation,
// because the kernel follows it to check the program. "no" has 16 bits. If the program reaches
// exactly its end, the socket is selected. If it reaches 4 bytes past its end, the socket is
// rejected.
//
// So each condition except the last is followed by a jump to the end. If a condition matches, the
// program continues at that jump. Otherwise it skips the jump and continues at the next condition.
// If the last condition does not match, the program continues 4 bytes past the end.
func filter(remotes []netip.AddrPort) []byte {
	remotes = remotes[:min(len(remotes), mostRemotes)]
	var b []byte
	var jumps []int
	for i, r := range remotes {
		addr, family := r.Addr().AsSlice(), byte(unix.AF_INET6)
		if r.Addr().Is4() {
			family = unix.AF_INET
		}
		size := sizeofOp + sizeofCond + len(addr)
		b = append(b, destination, byte(size))
		b = binary.NativeEndian.AppendUint16(b, uint16(size+sizeofOp))
		b = append(b, family, byte(8*len(addr)), 0, 0)
		b = binary.NativeEndian.AppendUint32(b, uint32(r.Port()))
		b = append(b, addr...)
		if i < len(remotes)-1 {
			jumps = append(jumps, len(b))
			b = append(b, jump, sizeofOp, 0, 0)
		}
	}

	for _, at := range jumps {
		binary.NativeEndian.PutUint16(b[at+2:], uint16(len(b)-at))
	}
	return b
}
