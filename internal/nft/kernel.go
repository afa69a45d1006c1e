package nft

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"

	"github.com/kubeveil/kubeveil/internal/nfnl"
)

// transactionSize is the size in bytes of the send buffer of the socket. The kernel refuses a
// larger transaction (netlink_sendmsg). It allocates only the memory that a transaction needs.
const transactionSize = 64 << 20

// Conn is a connection to nftables in the network namespace of the thread that opened it. Callers
// with several reads and changes should keep a Conn: before the kernel closes a socket, it frees
// the objects that the last transactions of all programs removed, which takes 20 to 40 ms (see
// package nfnl). A Conn is not safe for concurrent use. The caller must close it at the end, and
// after an error that does not match fs.ErrNotExist.
type Conn struct {
	nftables *nftables.Conn
	// socket is the socket of the field nftables.
	socket *netlink.Conn
}

// Open opens a connection. Its buffers are large enough for a transaction of transactionSize and
// the replies to all messages of it.
func Open() (*Conn, error) {
	c := &Conn{}
	var err error
	c.nftables, err = nftables.New(nftables.AsLasting(), nftables.WithSockOptions(
		func(s *netlink.Conn) error {
			c.socket = s
			return errors.Join(s.SetWriteBuffer(transactionSize),
				s.SetReadBuffer(transactionSize/8))
		}))
	if err == nil {
		return c, nil
	}
	if c.socket != nil {
		err = errors.Join(err, c.socket.Close())
	}
	return nil, fmt.Errorf("open nftables: %w", err)
}

// Close closes the connection. The results of Messages cannot be used any more.
func (c *Conn) Close() error { return c.nftables.CloseLasting() }

// Messages returns a connection on the same socket for messages of other subsystems of nfnetlink,
// such as conntrack.
func (c *Conn) Messages() (*nfnl.Conn, error) {
	raw, err := c.socket.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("share the socket of nftables: %w", err)
	}
	var shared *nfnl.Conn
	if err := raw.Control(func(fd uintptr) { shared = nfnl.Share(int(fd)) }); err != nil {
		return nil, fmt.Errorf("share the socket of nftables: %w", err)
	}
	return shared, nil
}

// with calls f with a new connection and then closes it.
func with(f func(*Conn) error) error {
	c, err := Open()
	if err != nil {
		return err
	}
	return errors.Join(f(c), c.Close())
}

// read calls f with the table of that name. If there is no such table, it does not call f, and the
// error matches fs.ErrNotExist.
func (c *Conn) read(table string, f func(*nftables.Conn, *nftables.Table) error) error {
	t := kernelTable(table)
	switch listed, err := c.nftables.ListTableOfFamily(t.Name, t.Family); {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("nft table inet %s does not exist: %w", table, err)
	case err != nil:
		return fmt.Errorf("read nft table inet %s: %w", table, err)
	default:
		// The library reads the flags in the byte order of the host; the kernel sends them
		// big-endian.
		t.Flags = binary.BigEndian.Uint32(Native(listed.Flags))
	}
	if err := f(c.nftables, t); err != nil {
		return fmt.Errorf("nft table inet %s: %w", table, err)
	}
	return nil
}

// isDormant reports whether the hooks of a table are turned off (NFT_TABLE_F_DORMANT). t must have
// been read.
func isDormant(t *nftables.Table) bool { return t.Flags&1 != 0 }

func kernelTable(name string) *nftables.Table {
	return &nftables.Table{Family: nftables.TableFamilyINet, Name: name}
}

// Find returns nil if the tables exist, are not dormant, and have all chains and sets of these
// names. The error names the first missing object.
func Find(tables ...*Table) error {
	return with(func(c *Conn) error { return c.Find(tables...) })
}

// Find does the same as the function Find, on c.
func (c *Conn) Find(tables ...*Table) error {
	for _, t := range tables {
		if err := c.read(t.Name, t.find); err != nil {
			return err
		}
	}
	return nil
}

func (t *Table) find(c *nftables.Conn, kernel *nftables.Table) error {
	if isDormant(kernel) {
		return errors.New("another program set its flag dormant, so it sees no packet")
	}
	for _, chain := range t.Chains {
		if _, err := c.ListChain(kernel, chain.Name); err != nil {
			return fmt.Errorf("chain %s: %w", chain.Name, err)
		}
	}
	if len(t.Sets) == 0 {
		return nil
	}

	sets, err := c.GetSets(kernel)
	if err != nil {
		return fmt.Errorf("list sets: %w", err)
	}
	for _, s := range t.Sets {
		if !slices.ContainsFunc(sets, func(k *nftables.Set) bool { return k.Name == s.Name }) {
			return fmt.Errorf("set %s does not exist", s.Name)
		}
	}
	return nil
}

// Read returns the content in the kernel of the table with t's name, or nil if there is none. It
// reads flow tables only if t has one. It reads the elements of sets that t has and that are not
// Shared. While the kernel resizes a large set (nft_rhash_walk), a reading may miss elements. Diff
// then adds these elements again, which changes nothing.
func (t *Table) Read() (*Table, error) {
	all, err := ReadAll(t)
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// ReadAll is like Read for several tables, with one connection.
func ReadAll(tables ...*Table) ([]*Table, error) {
	all := make([]*Table, len(tables))
	err := with(func(c *Conn) error {
		for i, want := range tables {
			got := &Table{Name: want.Name}
			err := c.read(want.Name, got.readAs(want))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			all[i] = got
		}
		return nil
	})
	return all, err
}

// readAs returns a function for Conn.read that reads into t the objects that Read needs to compare
// t with want.
func (t *Table) readAs(want *Table) func(*nftables.Conn, *nftables.Table) error {
	return func(c *nftables.Conn, kernel *nftables.Table) error {
		t.Dormant = isDormant(kernel)
		if want.Flowtable != "" {
			if err := t.readFlowtables(c, kernel); err != nil {
				return err
			}
		}
		if err := t.readChains(c, kernel); err != nil {
			return err
		}

		var err error
		t.Sets, err = readSets(c, kernel, func(name string) bool {
			s := want.Set(name)
			return s.Name != "" && !s.Shared
		})
		if err != nil {
			return err
		}

		counts, err := counters(c, kernel)
		t.Counters = slices.Sorted(maps.Keys(counts))
		return err
	}
}

func (t *Table) readFlowtables(c *nftables.Conn, kernel *nftables.Table) error {
	tables, err := c.ListFlowtables(kernel)
	if err != nil {
		return fmt.Errorf("list flow tables: %w", err)
	}
	for _, f := range tables {
		t.Flowtable += f.Name
		t.Devices = append(t.Devices, f.Devices...)
	}
	return nil
}

func (t *Table) readChains(c *nftables.Conn, kernel *nftables.Table) error {
	chains, err := c.ListChainsOfTableFamily(kernel.Family)
	if err != nil {
		return fmt.Errorf("list chains: %w", err)
	}
	for _, ch := range chains {
		if ch.Table.Name != kernel.Name {
			continue
		}
		rules, err := c.GetRules(kernel, ch)
		if err != nil {
			return fmt.Errorf("list rules of chain %s: %w", ch.Name, err)
		}
		chain := Chain{Chain: *ch}
		for _, r := range rules {
			chain.Rules = append(chain.Rules, r.Exprs)
		}
		t.Chains = append(t.Chains, chain)
	}
	return nil
}

// Sets returns all sets of a table. It reads the elements only of sets for which which returns
// true. The error matches fs.ErrNotExist if there is no table.
func Sets(table string, which func(name string) bool) (sets []Set, err error) {
	err = with(func(c *Conn) error {
		sets, err = c.Sets(table, which)
		return err
	})
	return sets, err
}

// Sets does the same as the function Sets, on c.
func (c *Conn) Sets(table string, which func(name string) bool) (sets []Set, err error) {
	err = c.read(table, func(c *nftables.Conn, t *nftables.Table) error {
		sets, err = readSets(c, t, which)
		return err
	})
	return sets, err
}

// readSets reads all sets of t, and the elements of sets for which which returns true.
func readSets(c *nftables.Conn, t *nftables.Table, which func(name string) bool) ([]Set, error) {
	all, err := c.GetSets(t)
	if err != nil {
		return nil, fmt.Errorf("list sets: %w", err)
	}
	var sets []Set
	for _, s := range all {
		set := Set{Set: *s}
		if which(s.Name) {
			elements, err := c.GetSetElements(s)
			if err != nil {
				return nil, fmt.Errorf("list elements of set %s: %w", s.Name, err)
			}
			set.Elements = fromKernel(elements)
		}
		sets = append(sets, set)
	}
	return sets, nil
}

// fromKernel converts elements of the library. It joins the start and the end of each interval.
func fromKernel(elements []nftables.SetElement) (out []Element) {
	slices.SortFunc(elements, func(a, b nftables.SetElement) int {
		switch c := bytes.Compare(a.Key, b.Key); {
		case c != 0 || a.IntervalEnd == b.IntervalEnd:
			return c
		case a.IntervalEnd: // The end of an interval comes before the start of the next.
			return -1
		}
		return 1
	})
	for _, e := range elements {
		if !e.IntervalEnd {
			out = append(out, Element{Key: string(e.Key), Value: string(e.Val)})
		} else if len(out) > 0 {
			last := &out[len(out)-1]
			last.End = cmp.Or(last.End, string(e.Key))
		}
	}
	return out
}

// Counters returns the packet counts of the counters in tables, by the name of the counter. It
// skips missing tables. If several tables have a counter of the same name, the last table counts.
func Counters(tables ...string) (counts map[string]uint64, err error) {
	err = with(func(c *Conn) error {
		counts, err = c.Counters(tables...)
		return err
	})
	return counts, err
}

// Counters does the same as the function Counters, on c.
func (c *Conn) Counters(tables ...string) (map[string]uint64, error) {
	all := map[string]uint64{}
	for _, table := range tables {
		err := c.read(table, func(c *nftables.Conn, t *nftables.Table) error {
			counts, err := counters(c, t)
			maps.Copy(all, counts)
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return all, nil
}

func counters(c *nftables.Conn, t *nftables.Table) (map[string]uint64, error) {
	objects, err := c.GetNamedObjects(t)
	if err != nil {
		return nil, fmt.Errorf("list counters: %w", err)
	}
	counts := make(map[string]uint64)
	for _, o := range objects {
		if n, ok := o.(*nftables.NamedObj); ok {
			if counter, ok := n.Obj.(*expr.Counter); ok {
				counts[n.Name] = counter.Packets
			}
		}
	}
	return counts, nil
}
