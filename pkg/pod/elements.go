package pod

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// A pod's addresses are elements of the sets of abi.NFTPodTable, which veild
// makes: what comes from its link with another source is dropped there.

var podSets = []string{abi.NFTPodSet4, abi.NFTPodSet6}

// element is one address of one link.
type element struct {
	link string
	addr netip.Addr
}

// add adds e in the form that abi.NFTPodSet4 describes.
func (e element) add() nft.Elements {
	set := abi.NFTPodSet6
	if e.addr.Is4() {
		set = abi.NFTPodSet4
	}
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, e.link)
	return nft.Elements{Table: abi.NFTPodTable, Set: set,
		Add: []nft.Element{nft.Key(name, e.addr.AsSlice())}}
}

func elementOf(e nft.Element) (element, bool) {
	key := []byte(e.Key)
	if len(key) < unix.IFNAMSIZ {
		return element{}, false
	}
	name, _, _ := bytes.Cut(key[:unix.IFNAMSIZ], []byte{0})
	addr, ok := netip.AddrFromSlice(key[unix.IFNAMSIZ:])
	return element{string(name), addr}, ok
}

func elementsOf(link string, addrs []netip.Addr) []element {
	var all []element
	for _, a := range addrs {
		all = append(all, element{link, a})
	}
	return all
}

// nftSets are the sets of the tables of pods and of policies, by one connection: see nft.Conn.
type nftSets struct{ *nft.Conn }

// withSets opens a connection for f: one for all that f reads and changes.
func withSets(f func(nftSets) error) error {
	c, err := nft.Open()
	if err != nil {
		return err
	}
	return errors.Join(f(nftSets{c}), c.Close())
}

// change removes and adds elements in one transaction. Adding an existing element succeeds;
// removing a missing one fails. The error matches ErrNotFound when the sets are missing.
func (s nftSets) change(add, remove []element) error { return s.changeAll(add, remove, nil, nil) }

// changeAll is change that also lets pods join and leave groups of policies.
func (s nftSets) changeAll(add, remove []element, join, leave []member) error {
	changes := append(inverse(adding(remove)), inverse(adding(leave))...)
	return s.ChangeElements(append(append(changes, adding(join)...), adding(add)...)...)
}

func adding[T interface{ add() nft.Elements }](all []T) (changes []nft.Elements) {
	for _, e := range all {
		changes = append(changes, e.add())
	}
	return changes
}

// inverse removes what would be added.
func inverse(changes []nft.Elements) []nft.Elements {
	for i, c := range changes {
		changes[i].Add, changes[i].Remove = nil, c.Add
	}
	return changes
}

// elements returns all elements. The error matches ErrNotFound when there is no table. A set that
// does not exist, or belongs to another owner, has no elements.
func (s nftSets) elements() (all []element, err error) {
	sets, err := s.Sets(abi.NFTPodTable,
		func(name string) bool { return slices.Contains(podSets, name) })
	for _, set := range sets {
		for _, k := range set.Elements {
			if e, ok := elementOf(k); ok {
				all = append(all, e)
			}
		}
	}
	return all, err
}

// changeTries bounds how often elements are read again: the kernel's lists may miss one while
// another process changes the set, and two processes may remove the same.
const changeTries = 3

// addrsOf returns the link's addresses in the sets, sorted; it reads again if they are not as
// wanted.
func (s nftSets) addrsOf(link string, want []netip.Addr) ([]netip.Addr, error) {
	var addrs []netip.Addr
	for range changeTries {
		all, err := s.elements()
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
func (s nftSets) deleteElements(drop func(all []element) ([]element, error)) (int, error) {
	for try := 1; ; try++ {
		all, err := s.elements()
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
		err = s.change(nil, stale)
		if err == nil {
			return len(stale), nil
		}
		if !errors.Is(err, ErrNotFound) || try == changeTries {
			return 0, err
		}
	}
}

// unsetAddrs removes all elements of one link. The addresses that are known are removed without a
// look at the kernel's list, which may miss one while another process changes the set.
func (s nftSets) unsetAddrs(link string, known []netip.Addr) error {
	if len(known) > 0 {
		if err := s.change(nil, elementsOf(link, known)); !errors.Is(err, ErrNotFound) {
			return err
		}
	}
	_, err := s.deleteElements(func(all []element) ([]element, error) {
		return slices.DeleteFunc(all, func(e element) bool { return e.link != link }), nil
	})
	return err
}
