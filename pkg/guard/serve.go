package guard

import (
	"fmt"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"

	"github.com/kubeveil/kubeveil/pkg/config"
)

// A client outside speaks to a service: at the link its packet has the service's address, in this
// host the backend's, and what answers it has the backend's until it leaves. The programs at links
// that change the one into the other mark such packets, both ways:
//
//	client > service ─► NIC: guard, then translated and marked ─► here: client > backend ─► pod or tunnel
//	client < service ◄─ NIC: translated, then guard ◄──────────── here: client < backend, marked ◄─ pod or tunnel
//
// So with that mark a backend's address is no reason to drop what comes in by a link, nor one as source of what
// goes out: the program at the link judges what the network sees. No other host can set a mark, and
// what crosses from a pod's network namespace loses it. A pod's packet still goes to no backend but by a tunnel.

// unserved matches packets that are of no flow to a service.
func unserved() *match {
	return &match{fmt.Sprintf("mark & %#x == 0", config.ServiceMark), served(expr.CmpOpEq)}
}

// passServed leaves alone what is of such a flow.
func passServed() rule {
	return rule{fmt.Sprintf("mark & %#x != 0 return", config.ServiceMark),
		append(served(expr.CmpOpNeq), &expr.Verdict{Kind: expr.VerdictReturn})}
}

func served(op expr.CmpOp) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		&expr.Bitwise{
			SourceRegister: 1, DestRegister: 1, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(config.ServiceMark), Xor: make([]byte, 4),
		},
		&expr.Cmp{Op: op, Register: 1, Data: make([]byte, 4)},
	}
}
