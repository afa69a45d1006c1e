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

// podSets are the sets of abi.NFTPodTable, which veild makes. A pod's addresses are elements of
// them. The table drops packets from the pod's link with another source.
var podSets = []string{abi.NFTPodSet4, abi.NFTPodSet6}

// element is an element of a set: one address of one host link.
type element struct {
	link string
	addr netip.Addr
}

// add returns the change that adds e to its set, in the format that abi.NFTPodSet4 describes.
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

// nftSets is a connection to the sets in the tables of pods and of policies; see nft.Conn.
type nftSets struct{ *nft.Conn }

// withSets calls f with a new connection, and closes it.
func withSets(f func(nftSets) error) error {
	c, err := nft.Open()
	if err != nil {
		return err
	}
	return errors.Join(f(nftSets{c}), c.Close())
}

// change adds and removes elements in one transaction. Adding an existing element succeeds. If an
// element to remove, or a set, is missing, the error matches ErrNotFound.
func (s nftSets) change(add, remove []element) error { return s.changeAll(add, remove, nil, nil) }

// changeAll is change, and also adds members to and removes members from groups of policies.
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

// inverse turns changes that add elements into changes that remove them. It modifies changes.
func inverse(changes []nft.Elements) []nft.Elements {
	for i, c := range changes {
		changes[i].Add, changes[i].Remove = nil, c.Add
	}
	return changes
}

// elements returns all elements of the pods' sets. The error matches ErrNotFound if there is no
// table. A set that does not exist, or has another format, counts as empty.
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

// changeTries bounds how often elements are read. Several tries are needed, because a list from the
// kernel may lack an element while another process changes the set, and because two processes may
// remove the same element.
const changeTries = 3

// sameAddrs reports whether sorted and want have the same addresses. want may be in any order.
func sameAddrs(sorted, want []netip.Addr) bool {
	want = slices.Clone(want)
	slices.SortFunc(want, netip.Addr.Compare)
	return slices.Equal(sorted, want)
}

// deleteElements removes the elements that drop returns. It returns nil if there is no table.
func (s nftSets) deleteElements(drop func(all []element) ([]element, error)) error {
	for try := 1; ; try++ {
		all, err := s.elements()
		if errors.Is(err, ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		stale, err := drop(all)
		if err != nil {
			return err
		}
		err = s.change(nil, stale)
		if !errors.Is(err, ErrNotFound) || try == changeTries {
			return err
		}
	}
}

// unsetAddrs removes all elements of one link. It removes known addresses without reading the sets,
// because a list from the kernel may lack an element while another process changes the set.
func (s nftSets) unsetAddrs(link string, known []netip.Addr) error {
	if len(known) > 0 {
		if err := s.change(nil, elementsOf(link, known)); !errors.Is(err, ErrNotFound) {
			return err
		}
	}
	return s.deleteElements(func(all []element) ([]element, error) {
		return slices.DeleteFunc(all, func(e element) bool { return e.link != link }), nil
	})
}
