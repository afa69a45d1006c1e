package nftables

import (
	"slices"

	"github.com/google/nftables"

	"github.com/kubeveil/kubeveil/internal/nfnl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables/chains"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables/message"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables/sets"
)

// state is the content of the table in the kernel. Nil means that there is no table.
type state struct {
	chains   map[string]chains.Summary
	sets     map[string]sets.Union
	counters map[string]bool
}

var ourTable = &nftables.Table{Family: nftables.TableFamilyINet, Name: abi.NFTPolicyTable}

// read reads the table of the network namespace of c. A dormant table, which judges nothing, counts
// as missing, so it is made again.
func read(c *nfnl.Conn) (*state, error) {
	there, dormant, err := message.ReadTable(c, ourTable.Name)
	if err != nil || !there || dormant {
		return nil, err
	}
	s := &state{sets: map[string]sets.Union{}, counters: map[string]bool{}}
	if s.chains, err = message.ReadChains(c, ourTable.Name); err != nil {
		return nil, err
	}
	names, err := message.SetNames(c, ourTable.Name)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Compact(names) {
		keys, err := message.ReadSet(c, ourTable.Name, name)
		if err != nil {
			return nil, err
		}
		s.sets[name] = sets.Union{keys}
	}

	counters, err := message.ReadCounters(c, ourTable.Name)
	for name := range counters {
		s.counters[name] = true
	}
	return s, err
}

// The kernel numbers the ruleset of a network namespace: each transaction of any program adds one
// to the generation. While the kernel has the generation that PolicyTable recorded, PolicyTable
// need not read the table.

// standsLocked reports whether the ruleset is unchanged since the table was read.
func (t *PolicyTable) standsLocked(c *nfnl.Conn) (bool, error) {
	if !t.read || t.generation == 0 {
		return false, nil
	}
	now, err := message.Generation(c)
	return err == nil && now == t.generation, err
}

// commitLocked commits a transaction. The table, or its members, need not be read again if no other
// process changed the ruleset since they were read.
func (t *PolicyTable) commitLocked(c *nfnl.Conn, tx *message.Transaction) error {
	before, err := message.Generation(c)
	if err != nil {
		return err
	}
	if err := tx.Commit(c); err != nil {
		return err
	}
	after, err := message.Generation(c)

	follow := func(known *uint32) {
		if *known != before || *known == 0 || err != nil || after != before+1 {
			*known = 0
			return
		}
		*known = after
	}
	follow(&t.generation)
	follow(&t.members)
	return err
}
