package pod

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/internal/atomicfile"
	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// If NetworkPolicy is enforced, each pod is a member of one group: its addresses are elements of
// the group's sets in the table abi.NFTPolicyTable. A pod without a group is mute: its packets are
// dropped. When a pod is bound to the node, the daemon writes a reservation with the group of the
// pod. Attach adds the pod to this group, in the transaction that adds the addresses of its link:
//
//	daemon ─► PolicyDir/<pod> ─► Attach ─► pods4, pods6, members of the group
//
// Without a reservation, or if the group is gone, Attach leaves the pod mute. The daemon adds it to
// a group later.

// Workload identifies a pod in Kubernetes. The zero value means that the pod is not known.
type Workload struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
}

// reservation is the content of a file in PolicyDir.
type reservation struct {
	Workload
	// Group is the name of the group, without the prefixes of its sets.
	Group string `json:"group"`
}

// file returns the name of the reservation's file. It is a hash, because namespace, name and UID
// together may be too long for a file name.
func (w Workload) file() string {
	sum := sha256.Sum256([]byte(w.Namespace + "\x00" + w.Name + "\x00" + w.UID))
	return hex.EncodeToString(sum[:16])
}

// OpenPolicy makes PolicyDir. From now on, Attach leaves pods without a reservation mute. The table
// abi.NFTPolicyTable must exist, because Attach fails without it.
func (p Paths) OpenPolicy() error {
	if err := os.MkdirAll(p.PolicyDir, 0o700); err != nil {
		return fmt.Errorf("make directory of reservations: %w", err)
	}
	return nil
}

// PolicyOpen reports whether NetworkPolicy is enforced on this node: PolicyDir exists.
func (p Paths) PolicyOpen() (bool, error) {
	if p.PolicyDir == "" {
		return false, nil
	}
	return exists("reservations", p.PolicyDir)
}

// ClosePolicy removes PolicyDir. From now on, Attach ignores policies.
func (p Paths) ClosePolicy() error {
	if err := os.RemoveAll(p.PolicyDir); err != nil {
		return fmt.Errorf("remove reservations: %w", err)
	}
	return nil
}

// Reserve writes a reservation for each pod in groups, and removes all other reservations. It does
// not rewrite equal ones.
func (p Paths) Reserve(groups map[Workload]string) error {
	wanted := make(map[string]bool, len(groups))
	var errs []error
	for w, group := range groups {
		name := w.file()
		wanted[name] = true
		data, err := json.Marshal(reservation{w, group})
		if err != nil {
			return err
		}
		path := filepath.Join(p.PolicyDir, name)
		if have, err := os.ReadFile(path); err == nil && string(have) == string(data) {
			continue
		}
		if err := atomicfile.Write(path, data, 0o600); err != nil {
			errs = append(errs, fmt.Errorf("write reservation of pod %s/%s: %w", w.Namespace,
				w.Name, err))
		}
	}

	entries, err := os.ReadDir(p.PolicyDir)
	errs = append(errs, err)
	for _, e := range entries {
		if wanted[e.Name()] {
			continue
		}
		err := os.Remove(filepath.Join(p.PolicyDir, e.Name()))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove reservation: %w", err))
		}
	}
	return errors.Join(errs...)
}

// reserved returns the reserved group of a pod, or an empty string if there is no readable
// reservation.
func (p Paths) reserved(w Workload) string {
	data, err := os.ReadFile(filepath.Join(p.PolicyDir, w.file()))
	if err != nil || w.UID == "" {
		return ""
	}
	var r reservation
	if json.Unmarshal(data, &r) != nil || r.Workload != w {
		return ""
	}
	return r.Group
}

// member is an address in a set of the table of policies.
type member struct {
	set  string
	addr netip.Addr
}

// membersOf returns the elements of a pod in a group: each address in the group's set, and each
// address in the set of pairs that lets the pod reach itself through a service.
func membersOf(group string, addrs []netip.Addr) (out []member) {
	for _, a := range addrs {
		if a.Is4() {
			out = append(out, member{abi.NFTMembers4 + group, a}, member{abi.NFTSelf4, a})
		} else {
			out = append(out, member{abi.NFTMembers6 + group, a}, member{abi.NFTSelf6, a})
		}
	}
	return out
}

func (m member) add() nft.Elements {
	return nft.Elements{Table: abi.NFTPolicyTable, Set: m.set, Add: []nft.Element{m.element()}}
}

func (m member) element() nft.Element {
	e := nft.Addr(m.addr)
	if m.set == abi.NFTSelf4 || m.set == abi.NFTSelf6 {
		e.Key += e.Key
	}
	return e
}

// reserveTries bounds how often Attach tries again because the daemon changed the reservation
// meanwhile.
const reserveTries = 5

// writeJudged adds a link's addresses, and its pod to the reserved group, in one transaction. Then
// it reads the reservation again. If it is unchanged, the group was right: the daemon changes a
// reservation before it changes the kernel, so if it changes the group later, it finds the record
// and moves the pod.
func (p Paths) writeJudged(s nftSets, r Record) error {
	addrs := elementsOf(r.HostLink, r.Addrs)
	if err := s.Find(&nft.Table{Name: abi.NFTPolicyTable}); err != nil {
		return fmt.Errorf("%w: %w; is veild running? it restores it", ErrClosed, err)
	}

	var in []member
	for range reserveTries {
		group := p.reserved(r.Workload)
		var next []member
		if group != "" {
			next = membersOf(group, r.Addrs)
		}
		leave := slices.DeleteFunc(slices.Clone(in),
			func(m member) bool { return slices.Contains(next, m) })
		err := s.changeAll(addrs, nil, next, leave)
		if errors.Is(err, ErrNotFound) && group != "" {
			in = nil
			continue // The group is gone, so the daemon has written another reservation.
		}
		if err != nil {
			return unguarded(err)
		}
		if afterJoin != nil {
			afterJoin()
		}
		if in = next; p.reserved(r.Workload) == group {
			return nil
		}
	}
	// Leave the pod mute, until the daemon finds its record.
	if err := s.leaveGroups(r.Addrs); err != nil {
		return err
	}
	return unguarded(s.change(addrs, nil))
}

// afterJoin lets tests change the reservation after the pod was added to its group. It is nil in
// programs.
var afterJoin func()

// leaveGroups removes addresses from all groups, so that the next pod with one of them is not
// already in a group. If there is no table, it returns nil.
//
// The daemon may move the pod between groups meanwhile, as often as policies change. So the groups
// that were found are complete only if nothing changed during the search. Otherwise leaveGroups
// searches again.
func (s nftSets) leaveGroups(addrs []netip.Addr) error {
	for began := time.Now(); ; {
		found, quiet, err := s.groupsOf(addrs)
		if err == nil {
			err = s.ChangeElements(found...)
		}
		if moved := errors.Is(err, ErrNotFound); err == nil && quiet || err != nil && !moved {
			return err
		}
		if time.Since(began) > leaveLimit {
			return fmt.Errorf("groups of policies changed for %v without a pause: %w", leaveLimit,
				cmp.Or(err, errNotQuiet))
		}
	}
}

// leaveLimit bounds the time for which leaveGroups searches again.
const leaveLimit = 10 * time.Second

var errNotQuiet = errors.New("the pod may be in a group that was not read")

// afterSearch lets tests change the table after groupsOf searched it. It is nil in programs.
var afterSearch func()

// groupsOf returns the elements of addresses in all groups, as changes that remove them. quiet
// reports whether nothing changed during the search. Without a table, no address is in a group.
func (s nftSets) groupsOf(addrs []netip.Addr) (found []nft.Elements, quiet bool, err error) {
	if len(addrs) == 0 {
		return nil, true, nil
	}
	quiet, err = s.Quiet(func() (err error) {
		found, err = s.Search(abi.NFTPolicyTable, func(set string) []nft.Element {
			return keysIn(set, addrs)
		})
		if afterSearch != nil {
			afterSearch()
		}
		return err
	})
	return found, quiet, err
}

// keysIn returns the elements that addresses may have in a set of the table of policies.
func keysIn(set string, addrs []netip.Addr) (keys []nft.Element) {
	for _, a := range addrs {
		members, self := abi.NFTMembers4, abi.NFTSelf4
		if a.Is6() {
			members, self = abi.NFTMembers6, abi.NFTSelf6
		}
		if set == self || strings.HasPrefix(set, members) {
			keys = append(keys, member{set, a}.element())
		}
	}
	return keys
}
