package pod

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// Repaired is the result for one attachment that differed from its record.
type Repaired struct {
	Record Record
	// Changed holds a sentence for each difference that was repaired.
	Changed []string
	// Err matches ErrNotFound if the record or the link is gone, because the pod is being removed.
	// It matches ErrBusy if a plugin still held the lock of the attachment when ctx ended.
	Err error
}

// RepairAll makes the node's ends of attachments match their records: addresses in the sets, group,
// link up, neighbours and host routes. It works in this order, so that a pod is guarded before it
// is reachable. It does not enter the pods' namespaces. It returns the attachments that differed,
// sorted by host link. An error means that attachments could not be checked. It matches ErrClosed
// if the pods' table is missing.
//
// First it reads the kernel once for all attachments, without locks. A difference may be a plugin's
// work in progress. So it locks the attachments that differ, reads their records and the kernel
// again, and repairs what still differs. So it reads the kernel twice, regardless of the number of
// pods, unless it has to wait for locks.
func (p Paths) RepairAll(ctx context.Context, records []Record) ([]Repaired, error) {
	if len(records) == 0 {
		return nil, nil
	}
	k, err := openKernel()
	if err != nil {
		return nil, err
	}
	defer k.close()
	now, err := readNodeEnds(k, records)
	if err != nil {
		return nil, err
	}
	differ := slices.DeleteFunc(slices.Clone(records), func(r Record) bool {
		n, found := now[r.HostLink]
		return found && len(n.diff(r).texts) == 0
	})
	return p.repairFreeFirst(ctx, k, differ)
}

// RepairNamed is RepairAll for the attachments of the given host links. These probably differ, so
// it locks them before the first reading.
func (p Paths) RepairNamed(ctx context.Context, hostLinks []string) ([]Repaired, error) {
	if len(hostLinks) == 0 {
		return nil, nil
	}
	k, err := openKernel()
	if err != nil {
		return nil, err
	}
	defer k.close()
	var named []Record
	for _, link := range hostLinks {
		named = append(named, Record{HostLink: link})
	}
	return p.repairFreeFirst(ctx, k, named)
}

// repairFreeFirst repairs the attachments that are not locked. Then it waits for the locked ones,
// one by one, without holding other locks.
func (p Paths) repairFreeFirst(ctx context.Context, k *kernel,
	records []Record) ([]Repaired, error) {
	ended, cancel := context.WithCancel(ctx)
	cancel()
	all, err := p.repairThose(ended, k, records)
	for i, r := range all {
		if err != nil || ctx.Err() != nil || !errors.Is(r.Err, ErrBusy) {
			continue
		}
		var now []Repaired
		if now, err = p.repairThose(ctx, k, []Record{r.Record}); err == nil {
			all[i] = Repaired{Record: r.Record}
			copy(all[i:], now) // now has one element, or none if the attachment did not differ.
		}
	}
	all = slices.DeleteFunc(all, func(r Repaired) bool {
		return r.Err == nil && len(r.Changed) == 0
	})
	return all, err
}

// repairThose locks the attachments of records, reads the kernel and repairs. It returns the
// results sorted by host link.
func (p Paths) repairThose(ctx context.Context, k *kernel, records []Record) ([]Repaired, error) {
	if len(records) == 0 {
		return nil, nil
	}
	locked, done, unlock := p.lockRecords(ctx, records)
	defer unlock()
	if len(locked) > 0 {
		now, err := readNodeEnds(k, locked)
		if err != nil {
			return nil, err
		}
		for _, r := range locked {
			if changed, err := now.repair(k, r); len(changed) > 0 || err != nil {
				done = append(done, failed(r, changed, err))
			}
		}
	}
	slices.SortFunc(done, func(a, b Repaired) int {
		return strings.Compare(a.Record.HostLink, b.Record.HostLink)
	})
	return done, nil
}

// lockRecords locks the attachments of records until ctx ends. It returns the records of the locked
// ones, read again under the lock, and in done the others with the reason. Attachments share lock
// files, and a second flock(2) of the same file would wait for the first, so it locks each file
// only once.
func (p Paths) lockRecords(ctx context.Context,
	records []Record) (locked []Record, done []Repaired, unlock func()) {
	var unlocks []func()
	errByLock := map[string]error{}
	for _, r := range records {
		name := lockName(r.HostLink)
		err, tried := errByLock[name]
		if !tried {
			var free func()
			if free, err = p.lockUntil(ctx, r.HostLink); err == nil {
				unlocks = append(unlocks, free)
			}
			errByLock[name] = err
		}

		if errors.Is(err, ErrBusy) {
			err = fmt.Errorf("%s: %w", r.HostLink, ErrBusy)
		}

		current := r
		if err == nil {
			current, err = p.Load(r.HostLink) // r may have changed before the lock was taken.
		}

		if err != nil {
			done = append(done, failed(r, nil, err))
			continue
		}

		locked = append(locked, current)
	}

	return locked, done, func() {
		for _, free := range unlocks {
			free()
		}
	}
}

func failed(r Record, changed []string, err error) Repaired {
	if err != nil {
		err = fmt.Errorf("repair %s: %w", r.HostLink, err)
	}
	return Repaired{Record: r, Changed: changed, Err: err}
}

// repair repairs the differences of one attachment and returns a sentence for each. The error
// matches ErrNotFound if the link does not exist.
func (ends nodeEnds) repair(k *kernel, r Record) ([]string, error) {
	n, found := ends[r.HostLink]
	if !found {
		return nil, fmt.Errorf("find link %s: %w", r.HostLink, ErrNotFound)
	}

	d := n.diff(r)
	if d.addrs {
		foreign := slices.DeleteFunc(n.own,
			func(a netip.Addr) bool { return slices.Contains(r.Addrs, a) })
		if err := k.sets.change(elementsOf(r.HostLink, r.Addrs),
			elementsOf(r.HostLink, foreign)); err != nil {
			return nil, unguarded(err)
		}
	}

	if d.unfiltered {
		if err := filterSources(r.HostLink); err != nil {
			return nil, err
		}
	}

	l := linkOf(r.HostLink, n.index)
	if d.grp {
		if err := k.links.LinkSetGroup(l, int(abi.PodGroup)); err != nil {
			return nil, fmt.Errorf("set group: %w", err)
		}
	}

	if n.mtu != r.MTU {
		if err := k.links.LinkSetMTU(l, r.MTU); err != nil {
			return nil, fmt.Errorf("set mtu %d: %w", r.MTU, err)
		}
	}

	if d.up {
		if err := k.links.LinkSetUp(l); err != nil {
			return nil, fmt.Errorf("set up: %w", err)
		}
	}

	if err := setRoutes(k.links, d.routes, d.neighs); err != nil {
		return nil, err
	}
	return d.texts, nil
}
