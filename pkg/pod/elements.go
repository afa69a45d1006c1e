package pod

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// A pod's addresses are elements of the sets of abi.NFTPodTable, which veild
// makes: what comes from its link with another source is dropped there.

// ifNameLen is IFNAMSIZ (include/uapi/linux/if.h).
const ifNameLen = 16

var podTable = &nftables.Table{Family: nftables.TableFamilyINet, Name: abi.NFTPodTable}

var podSets = []string{abi.NFTPodSet4, abi.NFTPodSet6}

// element is one address of one link.
type element struct {
	link string
	addr netip.Addr
}

func (e element) set() *nftables.Set {
	if e.addr.Is4() {
		return &nftables.Set{Table: podTable, Name: abi.NFTPodSet4}
	}
	return &nftables.Set{Table: podTable, Name: abi.NFTPodSet6}
}

// key is the form that abi.NFTPodSet4 describes.
func (e element) key() []nftables.SetElement {
	key := make([]byte, ifNameLen)
	copy(key, e.link)
	return []nftables.SetElement{{Key: append(key, e.addr.AsSlice()...)}}
}

func elementOf(key []byte) (element, bool) {
	if len(key) < ifNameLen {
		return element{}, false
	}
	name, _, _ := bytes.Cut(key[:ifNameLen], []byte{0})
	addr, ok := netip.AddrFromSlice(key[ifNameLen:])
	return element{string(name), addr}, ok
}

func elementsOf(link string, addrs []netip.Addr) []element {
	var all []element
	for _, a := range addrs {
		all = append(all, element{link, a})
	}
	return all
}

// changeElements removes and adds elements in one transaction. Adding an existing element is no
// error; removing a missing one is. The error matches ErrNotFound when the sets are missing.
func changeElements(add, remove []element) error { return changeAll(add, remove, nil, nil) }

// changeAll is changeElements that also lets pods join and leave groups of policies.
func changeAll(add, remove []element, join, leave []member) error {
	if len(add)+len(remove)+len(join)+len(leave) == 0 {
		return nil
	}
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}

	for _, e := range remove {
		if err := c.SetDeleteElements(e.set(), e.key()); err != nil {
			return err
		}
	}

	for _, m := range leave {
		if err := c.SetDeleteElements(m.kernel()); err != nil {
			return err
		}
	}

	for _, m := range join {
		if err := c.SetAddElements(m.kernel()); err != nil {
			return err
		}
	}

	for _, e := range add {
		if err := c.SetAddElements(e.set(), e.key()); err != nil {
			return err
		}
	}

	if err := c.Flush(); err != nil {
		return fmt.Errorf("write addresses to nft table inet %s: %w", abi.NFTPodTable, err)
	}
	return nil
}

// readElements returns all elements. The error matches ErrNotFound when there is no
// table; a set that is not there, or is none of ours, has none.
func readElements() ([]element, error) {
	c, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	defer func() { _ = c.CloseLasting() }()
	if err := findTable(c, abi.NFTPodTable); err != nil {
		return nil, err
	}
	sets, err := c.GetSets(podTable)
	if err != nil {
		return nil, fmt.Errorf("list sets of nft table inet %s: %w", abi.NFTPodTable, err)
	}

	var all []element
	for _, s := range sets {
		if !slices.Contains(podSets, s.Name) {
			continue
		}
		elements, err := c.GetSetElements(s)
		if err != nil {
			return nil, fmt.Errorf("list elements of nft set %s: %w", s.Name, err)
		}
		for _, k := range elements {
			if e, ok := elementOf(k.Key); ok {
				all = append(all, e)
			}
		}
	}

	return all, nil
}

// findTable reports whether a table of ours is there; the error matches ErrNotFound when it is not.
func findTable(c *nftables.Conn, name string) error {
	_, err := c.ListTableOfFamily(name, nftables.TableFamilyINet)
	switch {
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("nft table inet %s does not exist: %w", name, ErrNotFound)
	case err != nil:
		return fmt.Errorf("read nft table inet %s: %w", name, err)
	}
	return nil
}

// changeTries bounds how often elements are read again: the kernel's lists may miss
// one while another process changes the set, and two may want to remove the same.
const changeTries = 3

// addrsOf returns the link's addresses in the sets, sorted; it reads again if they are not as
// wanted.
func addrsOf(link string, want []netip.Addr) ([]netip.Addr, error) {
	var addrs []netip.Addr
	for range changeTries {
		all, err := readElements()
		if err != nil {
			return nil, err
		}
		addrs = nil
		for _, e := range all {
			if e.link == link {
				addrs = append(addrs, e.addr)
			}
		}
		slices.SortFunc(addrs, netip.Addr.Compare)
		addrs = slices.Compact(addrs)
		if sameAddrs(addrs, want) {
			break
		}
	}
	return addrs, nil
}

// sameAddrs reports whether sorted are the addresses of want, in any order.
func sameAddrs(sorted, want []netip.Addr) bool {
	want = slices.Clone(want)
	slices.SortFunc(want, netip.Addr.Compare)
	return slices.Equal(sorted, want)
}

// deleteElements removes the elements that drop selects, and returns how many; a missing table has
// none.
func deleteElements(drop func(all []element) ([]element, error)) (int, error) {
	for try := 1; ; try++ {
		all, err := readElements()
		if errors.Is(err, ErrNotFound) {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		stale, err := drop(all)
		if err != nil {
			return 0, err
		}
		err = changeElements(nil, stale)
		if err == nil {
			return len(stale), nil
		}
		if !errors.Is(err, ErrNotFound) || try == changeTries {
			return 0, err
		}
	}
}

// unsetAddrs removes all elements of one link.
func unsetAddrs(link string) error {
	_, err := deleteElements(func(all []element) ([]element, error) {
		return slices.DeleteFunc(all, func(e element) bool { return e.link != link }), nil
	})
	return err
}
