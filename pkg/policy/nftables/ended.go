package nftables

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/kubeveil/kubeveil/internal/nfnl"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables/message"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables/sets"
)

// AnswersDropped is the time for which answers to an ended flow are dropped.
const AnswersDropped = sets.AnswersDropped

// Answer holds the addresses, ports and protocol of answers to a flow of UDP or SCTP.
type Answer struct {
	Src, Dst netip.AddrPort
	Proto    policy.Proto
}

// DropAnswers makes the table drop these answers for AnswersDropped from now on, in addition to the
// answers of earlier calls. c must be a connection of the table's network namespace. DropAnswers
// may run concurrently with the methods of PolicyTable.
func DropAnswers(c *nfnl.Conn, list []Answer) error {
	keys := make([][]string, len(sets.Families))
	for _, a := range list {
		i := sets.IndexOf(a.Src.Addr())
		keys[i] = append(keys[i], a.key())
	}
	var t message.Transaction
	for i, f := range sets.Families {
		// Only a new element has the whole time. The first addition lets the deletion succeed.
		slices.Sort(keys[i])
		own := slices.Compact(keys[i])
		t.AddElements(ourTable.Name, f.Ended, own)
		t.DeleteElements(ourTable.Name, f.Ended, own)
		t.AddElements(ourTable.Name, f.Ended, own)
	}
	if err := t.Commit(c); err != nil {
		return fmt.Errorf("drop answers to revoked flows, in nftables table %s: %w", ourTable.Name, err)
	}
	return nil
}

func (a Answer) key() string {
	b := append(a.Src.Addr().AsSlice(), a.Dst.Addr().AsSlice()...)
	b = append(b, byte(a.Proto), 0, 0, 0)
	for _, p := range []uint16{a.Src.Port(), a.Dst.Port()} {
		b = append(b, byte(p>>8), byte(p), 0, 0)
	}
	return sets.Key(b)
}
