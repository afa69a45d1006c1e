package passage

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// Priorities of the chains. The filters of other programs have priorities between them.
const first, last = -500, 500

// entered and left return the names of the two counters of a way, which is given by its index: the
// datagrams that entered the forward hook, and those that left for a tunnel.
func entered(way int) string { return fmt.Sprint("entered", way) }
func left(way int) string    { return fmt.Sprint("left", way) }

// writeCounters makes the table that counts the datagrams of a probe. It first deletes the table of
// a process that was killed during a probe, so that the counters begin at 0.
func writeCounters(link string, ways []Way) error {
	if err := Remove(); err != nil {
		return err
	}
	fromProbe := nft.Meta(expr.MetaKeyIIFNAME, nft.Eq,
		append([]byte(link), make([]byte, unix.IFNAMSIZ-len(link))...))
	t := &nft.Table{Name: abi.NFTProbeTable}
	var in, out []nft.Rule
	for i, w := range ways {
		to := nft.Destination4
		if w.To.Is6() {
			to = nft.Destination6
		}
		sent := nft.All(fromProbe, to.Begins(w.To.AsSlice()...))
		in = append(in, nft.All(sent, nft.Count(entered(i))))
		out = append(out, nft.All(sent, nft.OutGroup(nft.Eq, abi.TunnelGroup),
			nft.CountDrop(left(i))))
		t.Counters = append(t.Counters, entered(i), left(i))
	}

	t.Chains = []nft.Chain{
		nft.Base("entered", nftables.ChainTypeFilter, nftables.ChainHookForward, first, in...),
		nft.Base("left", nftables.ChainTypeFilter, nftables.ChainHookPostrouting, last,
			append(out, nft.All(fromProbe, nft.Drop))...),
	}
	return t.Replace()
}

// readCounters returns how many datagrams of a way entered the forward hook and how many left.
func readCounters(way int) (in, out uint64, err error) {
	counts, err := nft.Counters(abi.NFTProbeTable)
	if err != nil {
		return 0, 0, err
	}
	in, has := counts[entered(way)]
	out, hasOut := counts[left(way)]
	if !has || !hasOut {
		return 0, 0, fmt.Errorf("another program changed nft table inet %s", abi.NFTProbeTable)
	}
	return in, out, nil
}

// Remove deletes the table of a process that was killed during a probe. It returns nil when there
// is no such table.
func Remove() error {
	_, err := nft.Delete(abi.NFTProbeTable)
	return err
}
