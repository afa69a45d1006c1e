package guard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// chunk bounds the elements of one message, which is at most 64 KiB.
const chunk = 500

// tableNames are the names of our tables.
var tableNames = []string{abi.NFTPodTable, abi.NFTGuardTable}

// transactionSize bounds a transaction in bytes. The kernel applies a transaction whole or not at
// all, and refuses one larger than the socket's send buffer (netlink_sendmsg). Only what is used is
// allocated.
const transactionSize = 64 << 20

// transaction returns a connection that sends changes of any size at once and has space for the
// reply to each message.
func transaction() (*nftables.Conn, error) {
	return nftables.New(nftables.WithSockOptions(func(c *netlink.Conn) error {
		return errors.Join(c.SetWriteBuffer(transactionSize), c.SetReadBuffer(transactionSize/8))
	}))
}

// findTable returns a table of ours, nil when there is none.
func findTable(c *nftables.Conn, name string) (*nftables.Table, error) {
	t, err := c.ListTableOfFamily(name, nftables.TableFamilyINet)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return t, nil
}

// readTable reads the table; a missing one has no shape.
func readTable() (table, error) {
	c, err := nftables.New()
	if err != nil {
		return table{}, err
	}
	t, err := findTable(c, abi.NFTGuardTable)
	if err != nil || t == nil {
		return table{}, err
	}

	got := table{sets: make(map[string][]element)}
	var lines shapeLines
	if err := readChains(c, t, &lines); err != nil {
		return table{}, err
	}
	sets, err := c.GetSets(t)
	if err != nil {
		return table{}, fmt.Errorf("list sets: %w", err)
	}

	for _, s := range sets {
		lines.add("set %s", s.Name)
		elements, err := c.GetSetElements(s)
		if err != nil {
			return table{}, fmt.Errorf("list elements of %s: %w", s.Name, err)
		}
		got.sets[s.Name] = fromKernel(s, elements)
	}

	if err := readCounterNames(c, t, &lines); err != nil {
		return table{}, err
	}

	got.shape = lines.String()
	got.sort()
	return got, nil
}

func readCounterNames(c *nftables.Conn, t *nftables.Table, lines *shapeLines) error {
	counters, err := c.GetNamedObjects(t)
	if err != nil {
		return fmt.Errorf("list counters: %w", err)
	}
	for _, o := range counters {
		if n, ok := o.(*nftables.NamedObj); ok && n.Type == nftables.ObjTypeCounter {
			lines.add("counter %s", n.Name)
		}
	}
	return nil
}

func readChains(c *nftables.Conn, t *nftables.Table, lines *shapeLines) error {
	all, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return fmt.Errorf("list chains: %w", err)
	}
	for _, ch := range all {
		if ch.Table.Name != t.Name {
			continue
		}
		if ch.Hooknum == nil || ch.Priority == nil || ch.Policy == nil {
			lines.add("chain %s", ch.Name)
		} else {
			lines.chain(ch.Name, ch.Type, uint32(*ch.Hooknum), int32(*ch.Priority),
				uint32(*ch.Policy))
		}
		rules, err := c.GetRules(t, ch)
		if err != nil {
			return fmt.Errorf("list rules of %s: %w", ch.Name, err)
		}
		for i, r := range rules {
			text, _ := userdata.GetString(r.UserData, userdata.TypeComment)
			lines.rule(ch.Name, i, text)
		}
	}
	return nil
}

// fromKernel pairs the starts and ends of intervals.
func fromKernel(s *nftables.Set, elements []nftables.SetElement) []element {
	var starts, ends []netip.Addr
	var out []element
	for _, e := range elements {
		if s.Name == setTunnelPort {
			if len(e.Key) == 2 {
				out = append(out, element{port: binary.BigEndian.Uint16(e.Key)})
			}
			continue
		}
		addr := e.Key
		if s.IsMap {
			addr = e.Val
		}
		a, ok := netip.AddrFromSlice(addr)
		switch {
		case !ok:
		case e.IntervalEnd:
			ends = append(ends, a)
		default:
			starts = append(starts, a)
		}
	}

	for _, start := range starts {
		e := element{first: start}
		for _, end := range ends {
			if s.Interval && start.Less(end) && (!e.end.IsValid() || end.Less(e.end)) {
				e.end = end
			}
		}
		out = append(out, e)
	}

	return out
}

// toKernel is the inverse.
func toKernel(s *nftables.Set, elements []element) []nftables.SetElement {
	var out []nftables.SetElement
	for _, e := range elements {
		if s.Name == setTunnelPort {
			out = append(out, nftables.SetElement{Key: portKey(e.port)})
			continue
		}
		if s.IsMap {
			out = append(out, nftables.SetElement{Key: binaryutil.NativeEndian.PutUint32(
				abi.TunnelGroup), Val: e.first.AsSlice()})
			continue
		}
		out = append(out, nftables.SetElement{Key: e.first.AsSlice()})
		if e.end.IsValid() {
			out = append(out, nftables.SetElement{Key: e.end.AsSlice(), IntervalEnd: true})
		}
	}
	return out
}

func ourTable() *nftables.Table {
	return &nftables.Table{Family: nftables.TableFamilyINet, Name: abi.NFTGuardTable}
}

func ourSet(t *nftables.Table, name string) *nftables.Set {
	s := &nftables.Set{Table: t, Name: name, KeyType: nftables.TypeIPAddr}
	if strings.HasSuffix(name, "6") {
		s.KeyType = nftables.TypeIP6Addr
	}
	if name == setTunnelPort {
		s.KeyType = nftables.TypeInetService
	}
	if slices.Contains(mapNames, name) {
		s.IsMap, s.DataType = true, s.KeyType
		s.KeyType, s.KeyByteOrder = nftables.TypeDevGroup, binaryutil.NativeEndian
	}
	s.Interval = name == setRanges4 || name == setRanges6
	return s
}

// opTable replaces the table in one transaction and keeps its counters.
func opTable(want table) Op {
	return Op{"write nftables table " + abi.NFTGuardTable, abi.NFTGuardTable,
		func(*Guard, *nl.Handle) error {
			counts, err := readTableCounters(abi.NFTGuardTable)
			if err != nil {
				return err
			}
			c, err := transaction()
			if err != nil {
				return err
			}

			t := c.AddTable(ourTable()) // The delete below needs one.
			c.DelTable(t)
			c.AddTable(t)

			for _, name := range tableCounters {
				c.AddObj(&nftables.CounterObj{Table: t, Name: name, Packets: counts[name]})
			}

			for _, name := range setNames {
				s := ourSet(t, name)
				if err := c.AddSet(s, nil); err != nil {
					return fmt.Errorf("add set %s: %w", name, err)
				}
				if err := addElements(c, s, want.sets[name]); err != nil {
					return err
				}
			}

			for _, ch := range chains() {
				addChain(c, t, ch)
			}
			return c.Flush()
		}}
}

func addElements(c *nftables.Conn, s *nftables.Set, elements []element) error {
	for len(elements) > 0 {
		n := min(len(elements), chunk)
		if err := c.SetAddElements(s, toKernel(s, elements[:n])); err != nil {
			return fmt.Errorf("add elements to %s: %w", s.Name, err)
		}
		elements = elements[n:]
	}
	return nil
}

// opElements changes a set in one transaction. Removals come first, because the kernel refuses an
// interval that overlaps an existing one.
func opElements(name string, add, remove []element) Op {
	text := fmt.Sprintf("nftables set %s: add %d, remove %d", name, len(add), len(remove))
	return Op{text, abi.NFTGuardTable, func(*Guard, *nl.Handle) error {
		c, err := transaction()
		if err != nil {
			return err
		}
		s := ourSet(ourTable(), name)
		for len(remove) > 0 {
			n := min(len(remove), chunk)
			if err := c.SetDeleteElements(s, toKernel(s, remove[:n])); err != nil {
				return err
			}
			remove = remove[n:]
		}
		if err := addElements(c, s, add); err != nil {
			return err
		}
		return c.Flush()
	}}
}

func addChain(c *nftables.Conn, t *nftables.Table, ch chain) {
	nc := &nftables.Chain{Name: ch.name, Table: t, Hooknum: ch.hook, Priority: ch.priority,
		Type: ch.typ}
	if ch.hook != nil {
		policy := nftables.ChainPolicyAccept
		nc.Policy = &policy
	}
	nc = c.AddChain(nc)
	for _, r := range ch.rules {
		c.AddRule(&nftables.Rule{Table: t, Chain: nc, Exprs: r.exprs,
			UserData: userdata.AppendString(nil, userdata.TypeComment, r.text)})
	}
}

// readTableCounters returns packets by counter; none when there is no table.
func readTableCounters(name string) (map[string]uint64, error) {
	counts := make(map[string]uint64)
	c, err := nftables.New()
	if err != nil {
		return nil, err
	}
	t, err := findTable(c, name)
	if err != nil || t == nil {
		return counts, err
	}
	objs, err := c.GetObjects(t)
	if err != nil {
		return nil, fmt.Errorf("list counters of nftables table %s: %w", t.Name, err)
	}
	for _, o := range objs {
		if n, ok := o.(*nftables.CounterObj); ok {
			counts[n.Name] = n.Packets
		}
	}
	return counts, nil
}

// deleteTable deletes a table of ours and reports whether there was one.
func deleteTable(name string) (bool, error) {
	c, err := nftables.New()
	if err != nil {
		return false, err
	}
	t, err := findTable(c, name)
	if err != nil || t == nil {
		return false, err
	}
	c.DelTable(t)
	return true, c.Flush()
}
