package guard

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/kubeveil/kubeveil/internal/nettest"
)

// TestTableOfAnySizeIsWrittenAtOnce writes, changes and writes again the sets of a large cluster.
func TestTableOfAnySizeIsWrittenAtOnce(t *testing.T) {
	const count = 6000
	all := make([]netip.Addr, 0, 2*count)
	for i := range uint32(count) {
		four := [4]byte{198, 19}
		binary.BigEndian.PutUint16(four[2:], uint16(i))
		six := netip.MustParseAddr("fd42:9::").As16()
		binary.BigEndian.PutUint32(six[12:], i)
		all = append(all, netip.AddrFrom4(four), netip.AddrFrom16(six))
	}

	ns := nettest.NewNS(t)
	ns.Run(t, func() error {
		for _, s := range []Settings{{}, {NodeAddrs: all}, {}} {
			have, err := readTable()
			if err != nil {
				return err
			}
			want := Plan(s, nil)
			for _, op := range diffTable(have, want.Table) {
				if err := op.do(nil, nil); err != nil {
					t.Errorf("%s: %v", op, err)
				}
			}
			if have, err = readTable(); err != nil {
				return err
			}
			if ops := diffTable(have, want.Table); len(ops) > 0 {
				t.Errorf("with %d node addresses the table still wants %v", len(s.NodeAddrs), ops)
			}
		}

		// The whole table at once, as after a flush.
		return opTable(Plan(Settings{NodeAddrs: all}, nil).Table).do(nil, nil)
	})
}
