package nft_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nfnl"
	"github.com/kubeveil/kubeveil/internal/nft"
)

// changeElements changes elements on a connection of its own.
func changeElements(changes ...nft.Elements) error {
	c, err := nft.Open()
	if err != nil {
		return err
	}
	return errors.Join(c.ChangeElements(changes...), c.Close())
}

// full returns a table with all kinds of objects and expressions that packages use.
func full() *nft.Table {
	return &nft.Table{
		Name:     "kubeveil_test",
		Counters: []string{"lost", "seen"},
		Sets: []nft.Set{
			{Set: nftables.Set{Name: "addrs", KeyType: nftables.TypeIPAddr},
				Elements: []nft.Element{nft.Addr(netip.MustParseAddr("198.18.0.1"))}},
			{Set: nftables.Set{Name: "ranges", KeyType: nftables.TypeIP6Addr, Interval: true},
				Elements: ranges("fd42::/16", "fd43::/16", "ffff::/16")},
			{Set: nftables.Set{Name: "source", KeyType: nftables.TypeDevGroup, IsMap: true,
				DataType: nftables.TypeIPAddr, KeyByteOrder: binaryutil.NativeEndian},
				Elements: []nft.Element{{Key: string(nft.Native(7)), Value: "\xc6\x12\x00\x02"}}},
		},
		Chains: []nft.Chain{
			nft.Base("post", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, 90,
				nft.All(nft.OutGroup(nft.Neq, 7), nft.Return),
				nft.All(nft.Source4.NotIn("addrs"), nft.Rule{
					&expr.Meta{Key: expr.MetaKeyOIFGROUP, Register: 1}, nft.Value("source"),
					nft.SourceNAT(unix.NFPROTO_IPV4)}),
				nft.All(nft.Status(1<<5, nft.Neq), nft.Rule{&expr.Masq{}})),
			nft.Base("pre", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, -300,
				nft.All(nft.InGroup(nft.Eq, 7), nft.SetMark(0x200, 0x100), nft.Count("seen")),
				nft.All(nft.Destination6.In("ranges"), nft.Jump("rare")),
				nft.All(nft.Direction(nft.Eq, 1), nft.Mark(0x100, nft.Neq, 0), nft.Goto("rare")),
				nft.All(nft.Proto(nft.Eq, unix.IPPROTO_TCP), nft.Rule{
					&expr.Fib{Register: 1, ResultOIF: true, FlagDADDR: true, FlagMARK: true},
					&expr.Cmp{Register: 1, Data: nft.Native(0)}}, nft.Reset)),
			nft.Target("rare",
				nft.All(nft.Bytes(nft.Transport, 8, 0x45), nft.Rule{
					nft.Load(nft.Transport, 0, 1),
					&expr.Range{Register: 1, FromData: []byte{3}, ToData: []byte{5}},
				}, nft.CountDrop("lost")),
				nft.Rule{&expr.Immediate{Register: 1, Data: []byte{0x40, 0}}, &expr.Payload{
					OperationType: expr.PayloadWrite, SourceRegister: 1, Base: nft.Network,
					Offset: 6, Len: 2, CsumType: expr.CsumTypeInet, CsumOffset: 10}}),
		},
	}
}

func ranges(prefixes ...string) (out []nft.Element) {
	for _, p := range prefixes {
		out = append(out, nft.Interval(netip.MustParsePrefix(p)))
	}
	return out
}

// in runs f in a network namespace of its own.
func in(t *testing.T, f func() error) {
	t.Helper()
	nettest.NewNS(t).Run(t, f)
}

func command(text string) error { return nettest.Command("nft", text) }

// sync writes the difference to want and returns its text. It fails the test if there is a
// difference afterwards.
func sync(t *testing.T, want *nft.Table) string {
	t.Helper()
	have, err := want.Read()
	if err != nil {
		t.Error(err)
		return ""
	}
	d := nft.Diff(have, want)
	if d == nil {
		return ""
	}
	if err := d.Write(); err != nil {
		t.Errorf("%s: %v", d, err)
	}
	var left *nft.Difference
	for range 100 { // A large set that the kernel still resizes is read in part.
		if have, err = want.Read(); err != nil {
			t.Error(err)
		}
		if left = nft.Diff(have, want); left == nil {
			return d.String()
		}
	}
	t.Errorf("after %s: %s\nhave %swant %s", d, left, have, want)
	return d.String()
}

func TestWhatWasWrittenIsReadAgain(t *testing.T) {
	in(t, func() error {
		if got := sync(t, full()); got != "write nftables table kubeveil_test" {
			t.Errorf("%q", got)
		}
		if got := sync(t, full()); got != "" {
			t.Errorf("the second time: %q", got)
		}
		return nil
	})
}

// Diff names the objects that another program changed, and Write restores them.
func TestDifferenceNamesWhatAnotherProgramChanged(t *testing.T) {
	const table = "inet kubeveil_test "
	for _, c := range []struct{ damage, want string }{
		{"flush chain " + table + "pre", ": chain pre"},
		{"insert rule " + table + "rare accept", ": chain rare"},
		{"add chain " + table + "more", ": chain more"},
		{"add set " + table + "more { type mark; }", ": set more"},
		{"add counter " + table + "more", ": counter more"},
		{"add chain " + table + "pre { policy drop; }", ": chain pre"},
		{"flush table " + table, ": chain post, chain pre, chain rare"},
		{"delete table " + table, ""},
		{"add table " + table + "{ flags dormant; }", ": flag dormant"},
		{"add element " + table + "addrs { 198.18.0.9 }", ": set addrs +0 -1"},
		{"flush map " + table + "source; flush set " + table + "ranges",
			": set ranges +3 -0, set source +1 -0"},
		{"delete element " + table + "ranges { fd43::/16 }; add element " + table +
			"ranges { fd43::/17 }", ": set ranges +1 -1"},
	} {
		t.Run(c.damage, func(t *testing.T) {
			in(t, func() error {
				sync(t, full())
				if err := command(c.damage); err != nil {
					return err
				}

				if got := sync(t, full()); got != "write nftables table kubeveil_test"+c.want {
					t.Errorf("%q, want %q", got, c.want)
				}
				return nil
			})
		})
	}
}

// Comments are not compared, expressions are.
func TestRulesAreComparedByContent(t *testing.T) {
	want := &nft.Table{Name: "kubeveil_test", Chains: []nft.Chain{
		nft.Target("c", nft.All(nft.InGroup(nft.Eq, 7), nft.Drop))}}
	for rule, same := range map[string]bool{
		`iifgroup 7 drop comment "iifgroup 8 return"`: true,
		`iifgroup 8 drop comment "iifgroup 7 drop"`:   false,
		`iifgroup 7 return`:                           false,
		`oifgroup 7 drop`:                             false,
	} {
		in(t, func() error {
			if err := command("add table inet kubeveil_test; add chain inet kubeveil_test c; " +
				"add rule inet kubeveil_test c " + rule); err != nil {
				return err
			}
			if got := sync(t, want); (got == "") != same {
				t.Errorf("%s: difference %q", rule, got)
			}
			return nil
		})
	}
}

// shared returns a table with a set of another owner.
func shared() *nft.Table {
	return &nft.Table{Name: "kubeveil_test", Counters: []string{"lost"},
		Sets: []nft.Set{{Shared: true, Set: nftables.Set{Name: "links", Concatenation: true,
			KeyType: nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeIPAddr)}}},
		Chains: []nft.Chain{
			nft.Base("pre", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, -310,
				nft.Jump("target")),
			nft.Target("target", nft.CountDrop("lost")),
		}}
}

func TestChangedRulesKeepSharedElementsAndCounts(t *testing.T) {
	const table = "inet kubeveil_test "
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, "vpod1")
	element := nft.Key(name, []byte{198, 18, 0, 1})
	for _, c := range []struct {
		damage, what string
		kept         bool
	}{
		{"list ruleset", "", true},
		{"flush chain " + table + "target", ": chain target", true},
		{"flush chain " + table + "pre; delete chain " + table + "pre; add chain " + table +
			"pre { type filter hook input priority 7; }", ": chain pre", true},
		{"add table " + table + "{ flags dormant; }", ": flag dormant", false},
		{"add set " + table + "more { type mark; }", ": set more", false},
		{"add chain " + table + "more", ": chain more", false},
		{"flush table " + table + "; delete set " + table + "links; add set " + table +
			"links { type mark; }", ": chain pre, chain target, set links", false},
	} {
		t.Run(c.damage, func(t *testing.T) {
			in(t, func() error {
				if err := errors.Join(
					command("add table "+table+"; add counter "+table+"lost { packets 7 bytes 0 }"),
					shared().Replace(),
					changeElements(nft.Elements{Table: "kubeveil_test", Set: "links",
						Add: []nft.Element{element}}),
					command(c.damage)); err != nil {
					return err
				}
				if got := sync(t, shared()); strings.TrimPrefix(got,
					"write nftables table kubeveil_test") != c.what {
					t.Errorf("%q, want %q", got, c.what)
				}

				sets, err := nft.Sets("kubeveil_test", func(string) bool { return true })
				if err != nil {
					return err
				}
				if len(sets) != 1 || slices.Contains(sets[0].Elements, element) != c.kept {
					t.Errorf("sets are %v", sets)
				}
				counts, err := nft.Counters("kubeveil_test")
				if !maps.Equal(counts, map[string]uint64{"lost": 7}) {
					t.Errorf("counts are %v", counts)
				}
				return err
			})
		})
	}
}

func TestTableOfAnySizeIsWrittenAtOnce(t *testing.T) {
	var many []nft.Element
	for i := range uint32(20_000) {
		many = append(many, nft.Key(binary.BigEndian.AppendUint32(nil, 198<<24|18<<16+i)))
	}
	in(t, func() error {
		large := full()
		large.Set("addrs").Elements = many
		sync(t, large)
		if got := sync(t, full()); !strings.HasSuffix(got, ": set addrs +0 -19999") {
			t.Errorf("%q", got)
		}
		if got := sync(t, large); !strings.HasSuffix(got, ": set addrs +19999 -0") {
			t.Errorf("%q", got)
		}
		return nil
	})
}

// A transaction that fails changes nothing.
func TestWriteIsWholeOrNothing(t *testing.T) {
	in(t, func() error {
		sync(t, full())
		wrong := full()
		wrong.Chains = append(wrong.Chains, nft.Target("bad", nft.Jump("missing")))
		err := wrong.Replace()
		if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "kubeveil_test") {
			t.Errorf("error %v", err)
		}
		if got := sync(t, full()); got != "" {
			t.Errorf("the failure changed %q", got)
		}
		return nil
	})
}

// hostnet and passage replace their tables without reading them first.
func TestReplaceOfADormantTable(t *testing.T) {
	in(t, func() error {
		sync(t, full())
		if err := errors.Join(command("add table inet kubeveil_test { flags dormant; }"),
			full().Replace(), nft.Find(full())); err != nil {
			return err
		}
		if got := sync(t, full()); got != "" {
			t.Errorf("replaced, and still %q", got)
		}
		return nil
	})
}

func TestMissingThingsAreNamed(t *testing.T) {
	in(t, func() error {
		if had, err := nft.Delete("kubeveil_test"); had || err != nil {
			t.Errorf("Delete of no table: %t, %v", had, err)
		}
		if counts, err := nft.Counters("kubeveil_test"); len(counts) > 0 || err != nil {
			t.Errorf("counters of no table: %v, %v", counts, err)
		}
		if _, err := nft.Sets("kubeveil_test", nil); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("sets of no table: %v", err)
		}
		if err := nft.Find(&nft.Table{Name: "kubeveil_test"}); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("find no table: %v", err)
		}

		sync(t, full())
		want := full()
		if err := nft.Find(&nft.Table{Name: want.Name}, want); err != nil {
			t.Error(err)
		}
		for _, c := range []struct {
			flags string
			sees  bool
		}{{"{ flags dormant; }", false}, {"{ }", true}} {
			if err := command("add table inet kubeveil_test " + c.flags); err != nil {
				return err
			}
			if err := nft.Find(want); (err == nil) != c.sees {
				t.Errorf("with flags %s: %v", c.flags, err)
			}
		}
		want.Sets[1].Name = "none"
		if err := nft.Find(want); err == nil || !strings.Contains(err.Error(), "set none") {
			t.Errorf("error %v does not name the set", err)
		}
		want.Chains[1].Name = "none"
		if err := nft.Find(want); err == nil || !strings.Contains(err.Error(), "chain none") {
			t.Errorf("error %v does not name the chain", err)
		}
		if err := changeElements(nft.Elements{Table: "kubeveil_test", Set: "addrs",
			Remove: []nft.Element{nft.Key([]byte{1, 2, 3, 4})}}); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("remove a missing element: %v", err)
		}
		return nil
	})
}

// Search finds the elements that are in the sets of a table, and nothing in a table that is missing.
func TestSearchFindsWhichSetsHaveAnElement(t *testing.T) {
	in(t, func() error {
		const sets = 3000 // more than one send
		text := "add table inet kubeveil_test\nadd table inet other\n" +
			"add set inet other m0 { type ipv4_addr; elements = { 198.18.0.1 } }\n"
		for i := range sets {
			text += fmt.Sprintf("add set inet kubeveil_test m%d { type ipv4_addr; }\n", i)
		}
		text += "add element inet kubeveil_test m7 { 198.18.0.1, 198.18.0.3 }\n" +
			"add element inet kubeveil_test m2999 { 198.18.0.2 }\n"
		if err := nettest.Feed(text, "nft", "-f", "-"); err != nil {
			return err
		}

		c, err := nft.Open()
		if err != nil {
			return err
		}
		defer c.Close()
		keys := []nft.Element{nft.Key([]byte{198, 18, 0, 1}), nft.Key([]byte{198, 18, 0, 2})}
		for table, want := range map[string][]nft.Elements{
			"kubeveil_test": {{Table: "kubeveil_test", Set: "m7", Remove: keys[:1]},
				{Table: "kubeveil_test", Set: "m2999", Remove: keys[1:]}},
			"none": nil,
		} {
			got, err := c.Search(table, func(string) []nft.Element { return keys })
			if diff := cmp.Diff(want, got); diff != "" || err != nil {
				t.Errorf("table %s: %v (-want +got):\n%s", table, err, diff)
			}
		}
		return nil
	})
}

// A Conn can be used for several reads and changes, also after a call for a missing object.
func TestConnServesManyCalls(t *testing.T) {
	in(t, func() error {
		sync(t, full())
		c, err := nft.Open()
		if err != nil {
			return err
		}
		defer c.Close()
		missing := nft.Elements{Table: "kubeveil_test", Set: "addrs",
			Remove: []nft.Element{nft.Key([]byte{1, 2, 3, 4}), nft.Key([]byte{1, 2, 3, 5})}}
		more := []nft.Element{nft.Key([]byte{198, 18, 0, 9})}
		for range 2 {
			if err := c.ChangeElements(missing); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("remove missing elements: %v", err)
			}
			if _, err := c.Sets("none", nil); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("sets of no table: %v", err)
			}
			if chains, err := chainsBy(c); chains != len(full().Chains) || err != nil {
				t.Errorf("%d chains, %v", chains, err)
			}
			for _, change := range []nft.Elements{{Add: more}, {Remove: more}} {
				change.Table, change.Set = missing.Table, missing.Set
				quiet, err := c.Quiet(func() error { return c.ChangeElements(change) })
				if quiet || err != nil {
					t.Errorf("a change: quiet %t, %v", quiet, err)
				}
			}
			quiet, err := c.Quiet(func() error { return c.Find(full()) })
			if !quiet || err != nil {
				t.Errorf("no change: quiet %t, %v", quiet, err)
			}
		}
		if got := sync(t, full()); got != "" {
			t.Errorf("left %q", got)
		}
		return nil
	})
}

// chainsBy counts all chains by messages on the connection's socket.
func chainsBy(c *nft.Conn) (count int, err error) {
	m, err := c.Messages()
	if err != nil {
		return 0, err
	}
	var request nfnl.Messages
	request.Begin(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETCHAIN, 0, unix.NFPROTO_INET)
	err = m.Dump(&request, nil, func([]byte) error {
		count++
		return nil
	})
	return count, errors.Join(err, m.Close())
}
