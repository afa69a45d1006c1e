package nftables

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nfnl"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables/chains"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables/message"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables/sets"
)

// PolicyTable keeps the table of one network namespace. The zero value is ready. Its methods must
// run on threads of that namespace; they may be called concurrently. Close it at the end.
type PolicyTable struct {
	mu    sync.Mutex
	maker maker
	// conn stays open, because before the kernel closes a socket of nftables it finishes all
	// pending deletions, which takes about 10 ms.
	conn *nfnl.Conn
	// have is the content of the table in the kernel; read reports whether it is known.
	have *state
	read bool
	// generation is the ruleset's generation for which have is correct; 0 means that it is not
	// known. compare reports whether another program may have changed the table since.
	generation uint32
	compare    bool
	// members is the generation for which have is correct about the members of groups; 0 means that
	// it is not known.
	members uint32
	// reads counts the reads of elements.
	reads int
	// plan is the plan in force; nil if it is not known. ahead is what Part holds back.
	plan  *policy.Plan
	ahead ahead
	// keeps is the number of calls of Part for which the maker keeps what Keep took.
	keeps int
	// afterSlice lets tests end a change between slices. It is nil in programs.
	afterSlice func() error
	// stamp is the content in the kernel of the table of stamp.go.
	stamp stampState
}

// Close closes the connection to the kernel. The table stays in force.
func (t *PolicyTable) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.conn == nil {
		return nil
	}
	c := t.conn
	t.conn = nil
	return c.Close()
}

func (t *PolicyTable) openLocked() (*nfnl.Conn, error) {
	if t.conn == nil {
		c, err := nfnl.Open()
		if err != nil {
			return nil, err
		}
		t.conn = c
	}
	return t.conn, nil
}

// failedLocked marks the table's content as not known, and closes the connection, which may hold
// unread answers.
func (t *PolicyTable) failedLocked() {
	t.read = false
	if t.conn != nil {
		_ = t.conn.Close()
		t.conn = nil
	}
}

// Forget makes the next Apply read the kernel if any program changed the ruleset since the table
// was read. That change may concern the table.
func (t *PolicyTable) Forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.compare = true
}

// Refresh reads the members of groups, which plugins add and remove, if any program changed the
// ruleset. A caller reads the records of attachments after Refresh and before it makes the plan for
// Apply. A member without a record then belongs to no pod, and Apply removes it.
func (t *PolicyTable) Refresh() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	c, err := t.openLocked()
	if err != nil {
		return err
	}

	if !t.read {
		return t.readLocked(c)
	}
	stands, err := t.standsLocked(c)
	if err != nil {
		t.failedLocked()
		return err
	}
	if stands {
		return nil
	}
	if t.have == nil || t.compare {
		return t.readLocked(c)
	}
	before, err := message.Generation(c)
	if err == nil && before != t.members {
		err = t.readMembersLocked(c, before)
	}
	if err != nil {
		t.failedLocked()
	}
	return err
}

// readMembersLocked reads the members of groups. before is the generation of the ruleset.
func (t *PolicyTable) readMembersLocked(c *nfnl.Conn, before uint32) error {
	t.members = 0
	t.reads++
	for name := range t.have.sets {
		if !sets.IsMembers(name) {
			continue
		}
		got, err := message.ReadSet(c, ourTable.Name, name)
		if err != nil {
			return err
		}
		t.have.sets[name] = sets.Union{got}
	}
	after, err := message.Generation(c)
	if err == nil && before == after {
		t.members = after
	}
	return err
}

// Stands reports whether the ruleset is unchanged since the table was read. It also returns false
// if the ruleset's generation cannot be read.
func (t *PolicyTable) Stands() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	c, err := t.openLocked()
	if err != nil {
		return false
	}
	stands, err := t.standsLocked(c)
	if err != nil {
		t.failedLocked()
	}
	return err == nil && stands
}

func (t *PolicyTable) readLocked(c *nfnl.Conn) error {
	t.read, t.generation, t.members = false, 0, 0
	t.reads++
	before, err := message.Generation(c)
	if err != nil {
		return err
	}
	if t.have, err = read(c); err != nil {
		return err
	}
	if t.stamp, err = readStamp(c); err != nil {
		return err
	}
	after, err := message.Generation(c)
	if err != nil {
		return err
	}
	if t.read, t.compare = true, false; before == after {
		t.generation, t.members = after, after
	}
	return nil
}

// tries bounds how often Apply reads the kernel again because the table was not as expected. A
// plugin may remove a member at the same time.
const tries = 3

// Result describes what an Apply changed.
type Result struct {
	// Changes is the number of written chains, sets and elements; 0 if the plan was in force.
	Changes int
	// Shrinks reports whether less may be allowed than before, so that known connections have to be
	// judged.
	Shrinks bool
}

// Apply makes the kernel enforce the plan. After an error the kernel still enforces the previous
// plan.
func (t *PolicyTable) Apply(plan *policy.Plan) (Result, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	want := t.maker.want(plan)
	for try := 1; ; try++ {
		result, err := t.applyLocked(want)
		if err == nil {
			t.plan = plan
			t.ahead.applied(want)
			t.restLocked()
			return result, nil
		}
		t.failedLocked()
		if try == tries || !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EBUSY) {
			return Result{}, fmt.Errorf("write nftables table %s: %w", ourTable.Name, err)
		}
	}
}

func (t *PolicyTable) applyLocked(want *content) (r Result, err error) {
	c, err := t.openLocked()
	if err != nil {
		return r, err
	}
	if t.read && t.compare {
		if t.read, err = t.standsLocked(c); err != nil {
			return r, err
		}
		t.compare = false
	}
	if !t.read {
		if err := t.readLocked(c); err != nil {
			return r, err
		}
	}

	var cached chains.Fragments
	d := diff(t.have, want, &cached)
	d.delSets = slices.DeleteFunc(d.delSets, t.ahead.needs)
	restamp := !t.stamp.whole()
	if d.empty() && !restamp {
		return r, nil
	}
	made, err := t.prepareLocked(c, d, want)
	if err != nil {
		return Result{}, err
	}
	r.Changes = made
	if err := d.findEdits(c, t.have, want, &cached); err != nil {
		return Result{}, err
	}
	var tx message.Transaction
	if restamp {
		writeStamp(&tx, t.stamp.dropped)
		r.Changes++
	}
	d.write(&tx, want, &cached)
	if err := t.commitLocked(c, &tx); err != nil {
		return Result{}, err
	}
	t.have, t.stamp.chains = want.update(t.have, d, &cached), stampWanted()
	return Result{Changes: r.Changes + d.count(), Shrinks: d.shrinks(want)}, nil
}

// Exists reports whether the table is in force.
func Exists() (there bool, err error) {
	err = with(func(c *nfnl.Conn) (err error) {
		there, _, err = message.ReadTable(c, ourTable.Name)
		return err
	})
	return there, err
}

// Remains reports whether there is anything that Delete deletes.
func Remains() (remains bool, err error) {
	err = with(func(c *nfnl.Conn) (err error) {
		remains, _, err = message.ReadTable(c, ourTable.Name)
		if err == nil && !remains {
			remains, _, err = message.ReadTable(c, stampTable.Name)
		}
		return err
	})
	return remains, err
}

// with calls f with a new connection to the kernel, and closes it.
func with(f func(*nfnl.Conn) error) error {
	c, err := nfnl.Open()
	if err != nil {
		return err
	}
	return errors.Join(f(c), c.Close())
}

// Delete deletes the table and the stamp's table in one transaction, and with them all policy.
func Delete() error {
	var tx message.Transaction
	for _, name := range []string{stampTable.Name, ourTable.Name} {
		tx.AddTable(name) // The delete fails without a table.
		tx.DeleteTable(name)
	}
	if err := with(tx.Commit); err != nil {
		return fmt.Errorf("delete nftables table %s: %w", ourTable.Name, err)
	}
	return nil
}

// DropReasons returns the names of all drop reasons of the tables.
func DropReasons() []string { return append(slices.Clone(policy.DropReasons), chains.Unstamped) }

// Drops returns the number of dropped packets by reason. All are 0 if there is no table.
func Drops() (map[string]uint64, error) {
	counts := map[string]uint64{}
	for _, name := range DropReasons() {
		counts[name] = 0
	}
	err := with(func(c *nfnl.Conn) error {
		for _, t := range []string{ourTable.Name, stampTable.Name} {
			counters, err := message.ReadCounters(c, t)
			if err != nil {
				return err
			}
			maps.Copy(counts, counters)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return counts, nil
}
