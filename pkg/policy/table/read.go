package table

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// state is what the kernel has; nil is no table.
type state struct {
	// chains are the texts of rules by chain. The first is that of the hook.
	chains   map[string][]string
	sets     map[string]elements
	counters map[string]bool
}

var ourTable = &nftables.Table{Family: nftables.TableFamilyINet, Name: abi.NFTPolicyTable}

// transactionSize bounds a transaction, bytes. The kernel takes one whole or not at all.
const transactionSize = 64 << 20

// answersSize bounds what the kernel answers to a transaction, bytes of its memory. Each rule is
// acknowledged and sent back. Where the answers do not fit, the kernel has the transaction all the
// same, but the sender is told that it failed.
const answersSize = 4 * transactionSize

func open() (*nftables.Conn, error) {
	c, err := nftables.New(nftables.AsLasting(),
		nftables.WithSockOptions(func(c *netlink.Conn) error {
			return errors.Join(c.SetWriteBuffer(transactionSize),
				c.SetReadBuffer(answersSize))
		}))
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	return c, nil
}

// read reads the table of the calling thread's network namespace.
func read(c *nftables.Conn) (*state, error) {
	_, err := c.ListTableOfFamily(ourTable.Name, ourTable.Family)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read nftables table %s: %w", ourTable.Name, err)
	}

	s := &state{chains: map[string][]string{}, sets: map[string]elements{},
		counters: map[string]bool{}}
	if err := s.readChains(c); err != nil {
		return nil, err
	}
	sets, err := c.GetSets(ourTable)
	if err != nil {
		return nil, fmt.Errorf("list sets of %s: %w", ourTable.Name, err)
	}
	for _, set := range sets {
		if s.sets[set.Name], err = readSet(c, set); err != nil {
			return nil, err
		}
	}
	counters, err := c.GetNamedObjects(ourTable)
	if err != nil {
		return nil, fmt.Errorf("list counters of %s: %w", ourTable.Name, err)
	}
	for _, o := range counters {
		if n, ok := o.(*nftables.NamedObj); ok && n.Type == nftables.ObjTypeCounter {
			s.counters[n.Name] = true
		}
	}
	return s, nil
}

func (s *state) readChains(c *nftables.Conn) error {
	chains, err := c.ListChainsOfTableFamily(ourTable.Family)
	if err != nil {
		return fmt.Errorf("list chains: %w", err)
	}
	for _, ch := range chains {
		if ch.Table.Name != ourTable.Name {
			continue
		}
		texts := []string{hookText(ch)}
		rules, err := c.GetRules(ourTable, ch)
		if err != nil {
			return fmt.Errorf("list rules of %s: %w", ch.Name, err)
		}
		for _, r := range rules {
			text, _ := userdata.GetString(r.UserData, userdata.TypeComment)
			texts = append(texts, text)
		}
		s.chains[ch.Name] = texts
	}
	return nil
}

// hookText describes the hook of a chain; empty is none.
func hookText(ch *nftables.Chain) string {
	if ch.Hooknum == nil || ch.Priority == nil {
		return ""
	}
	return fmt.Sprintf("hook %d priority %d", *ch.Hooknum, *ch.Priority)
}

// texts describe the chain as read does.
func (c *chain) texts() []string {
	if c.lines != nil {
		return c.lines
	}
	c.lines = []string{""}
	if c.hook != nil {
		c.lines[0] = hookText(&nftables.Chain{Hooknum: c.hook, Priority: &c.priority})
	}
	for _, r := range c.rules {
		c.lines = append(c.lines, r.text)
	}
	return c.lines
}

func readSet(c *nftables.Conn, set *nftables.Set) (elements, error) {
	list, err := c.GetSetElements(set)
	if err != nil {
		return nil, fmt.Errorf("list elements of %s: %w", set.Name, err)
	}
	out := make(elements, len(list))
	for _, e := range list {
		k := key(e.Key)
		if e.IntervalEnd {
			k = "\x01" + k[1:]
		}
		out[k] = true
	}
	return out, nil
}
