package nft

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// chunk is the largest number of elements in one message, whose size is at most 64 KiB.
const chunk = 500

// Write applies the difference in one transaction.
func (d *Difference) Write() error {
	return writing(d.want.Name, func(c *nftables.Conn) error {
		t := kernelTable(d.want.Name)
		c.AddTable(t)
		var counts map[string]uint64
		if d.replace {
			var err error
			if counts, err = counters(c, t); err != nil {
				return err
			}
			c.DelTable(t)
			c.AddTable(t)
			if d.want.Flowtable != "" {
				c.AddFlowtable(d.want.flows())
			}
		}

		for _, name := range d.counters {
			c.AddObj(&nftables.CounterObj{Table: t, Name: name, Packets: counts[name]})
		}
		for _, s := range d.sets {
			s.Table = t
			if err := c.AddSet(&s.Set, nil); err != nil {
				return fmt.Errorf("set %s: %w", s.Name, err)
			}
		}
		if err := changeElements(c, d.elements); err != nil {
			return err
		}
		if d.chains {
			d.writeChains(c, t)
		}
		return nil
	})
}

// writeChains adds the wanted chains and their rules. If the table is not replaced, it first
// deletes the chains of the same names, so that the hook of a chain may change.
func (d *Difference) writeChains(c *nftables.Conn, t *nftables.Table) {
	for _, do := range []func(*nftables.Chain){c.FlushChain, c.DelChain} {
		for _, chain := range d.want.Chains {
			if !d.replace {
				do(c.AddChain(&nftables.Chain{Name: chain.Name, Table: t}))
			}
		}
	}

	for _, chain := range d.want.Chains {
		chain.Table = t
		c.AddChain(&chain.Chain)
	}
	for _, chain := range d.want.Chains {
		for _, rule := range chain.Rules {
			c.AddRule(&nftables.Rule{Table: t, Chain: &chain.Chain, Exprs: rule})
		}
	}
}

// writing makes one transaction on a table with a new connection. f adds the messages.
func writing(table string, f func(*nftables.Conn) error) error {
	return with(func(c *Conn) error { return c.write(table, f) })
}

// write makes one transaction on a table. f adds the messages.
func (c *Conn) write(table string, f func(*nftables.Conn) error) error {
	err := f(c.nftables)
	if err == nil {
		err = c.nftables.Flush()
	}
	if err != nil {
		return fmt.Errorf("write nft table inet %s: %w", table, err)
	}
	return nil
}

// Try creates the table with its chains and sets and deletes it, in one transaction, so that no
// packet passes the table. It returns the error with which the kernel refuses the content.
func (t *Table) Try() error {
	return writing(t.Name, func(c *nftables.Conn) error {
		kernel := kernelTable(t.Name)
		c.AddTable(kernel)
		for _, s := range t.Sets {
			s.Table = kernel
			if err := c.AddSet(&s.Set, nil); err != nil {
				return fmt.Errorf("set %s: %w", s.Name, err)
			}
		}
		(&Difference{want: t, replace: true}).writeChains(c, kernel)
		c.DelTable(kernel)
		return nil
	})
}

// Replace writes the whole table. It replaces a table of the same name, but counters keep their
// counts.
func (t *Table) Replace() error { return Diff(nil, t).Write() }

// Delete deletes a table and reports whether the table existed.
func Delete(table string) (bool, error) {
	err := writing(table, func(c *nftables.Conn) error {
		c.DelTable(kernelTable(table))
		return nil
	})
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

// Join adds the Devices of t to the flow table of t. Links that are already in the flow table stay.
func (t *Table) Join() error {
	return writing(t.Name, func(c *nftables.Conn) error {
		c.AddFlowtable(t.flows())
		return nil
	})
}

func (t *Table) flows() *nftables.Flowtable {
	return &nftables.Flowtable{Table: kernelTable(t.Name), Name: t.Flowtable, Devices: t.Devices}
}

// ChangeElements changes elements of sets in one transaction. The error matches fs.ErrNotExist if a
// set, or an element to remove, is missing.
func (c *Conn) ChangeElements(changes ...Elements) error {
	if len(changes) == 0 {
		return nil
	}
	return c.write(changes[0].Table, func(c *nftables.Conn) error {
		return changeElements(c, changes)
	})
}

// changeElements adds the messages for changes. In each set it removes elements before it adds
// others, because the kernel refuses an interval that overlaps another.
func changeElements(c *nftables.Conn, changes []Elements) error {
	for _, e := range changes {
		set := &nftables.Set{Table: kernelTable(e.Table), Name: e.Set}
		for some := range slices.Chunk(e.Remove, chunk) {
			if err := c.SetDeleteElements(set, toKernel(some)); err != nil {
				return fmt.Errorf("set %s: %w", e.Set, err)
			}
		}
		for some := range slices.Chunk(e.Add, chunk) {
			if err := c.SetAddElements(set, toKernel(some)); err != nil {
				return fmt.Errorf("set %s: %w", e.Set, err)
			}
		}
	}
	return nil
}

// toKernel is the inverse of fromKernel.
func toKernel(elements []Element) (out []nftables.SetElement) {
	for _, e := range elements {
		out = append(out, nftables.SetElement{Key: []byte(e.Key), Val: []byte(e.Value)})
		if e.End != "" {
			out = append(out, nftables.SetElement{Key: []byte(e.End), IntervalEnd: true})
		}
	}
	return out
}
