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
	// Changed are sentences for people: what was put right.
	Changed []string
	// Err matches ErrNotFound when the record or the link is gone: the pod is being removed. It
	// matches ErrBusy when a plugin that is at work on the attachment had not ended when ctx did.
	Err error
}

// RepairAll makes the node's end of attachments match their records: addresses in the sets, group,
// link up, neighbours and host routes, in that order, so that a pod is guarded before it is
// reachable. It does not enter the pods' namespaces. It returns those that differed, sorted by host
// link. An error means that nothing was checked; it matches ErrClosed when the pods' table is
// missing.
//
// It reads the kernel once for all, without locks. A difference may be a plugin's work in progress.
// So it locks only those attachments, reads their records and the kernel again, and changes what
// still differs. The cost is two readings, regardless of the number of pods and repairs.
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

// RepairNamed is RepairAll for the attachments of those host links, which probably differ: they are
// locked at once and read once.
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

// repairFreeFirst repairs records. It waits for locked ones one by one, while it holds no other
// lock.
func (p Paths) repairFreeFirst(ctx context.Context, k *kernel,
	records []Record) ([]Repaired, error) {
	ended, cancel := context.WithCancel(ctx)
	cancel()
	all, err := p.repairThose(ended, k, records)
	for i, r := range all {
		if err == nil && errors.Is(r.Err, ErrBusy) && ctx.Err() == nil {
			all, err = p.again(ctx, k, all, i)
		}
	}
	all = slices.DeleteFunc(all, func(r Repaired) bool {
		return r.Err == nil && len(r.Changed) == 0
	})
	return all, err
}

// again repairs all[i], which was busy.
func (p Paths) again(ctx context.Context, k *kernel, all []Repaired, i int) ([]Repaired, error) {
	one, err := p.repairThose(ctx, k, []Record{all[i].Record})
	if err != nil {
		return all, err
	}
	if all[i] = (Repaired{Record: all[i].Record}); len(one) > 0 {
		all[i] = one[0]
	}
	return all, nil
}

// repairThose locks records, reads the kernel and repairs.
func (p Paths) repairThose(ctx context.Context, k *kernel,
	records []Record) ([]Repaired, error) {
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

// lockRecords locks the attachments, as many as are free before ctx ends, and returns their records
// as they are under the lock; done are those that cannot be repaired, with the reason. Attachments
// share lock files, and flock(2) does not recognize two holders in one process: each file is locked
// once.
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
			current, err = p.Load(r.HostLink) // What was handed in may be older than the lock.
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

// repair puts right what differs. A link that is not there matches ErrNotFound.
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
