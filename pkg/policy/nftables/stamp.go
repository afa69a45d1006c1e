package nftables

import (
	"maps"
	"sync"

	"github.com/google/nftables"

	"github.com/kubeveil/kubeveil/internal/nfnl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables/chains"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables/message"
)

// The table of policies marks each packet with a stamp (abi.PolicyMark). A second table drops
// packets of pods without a stamp (chains.StampChains). If the second table must be written, it is
// written in one transaction with the changes of the first.

var stampTable = &nftables.Table{Family: nftables.TableFamilyINet, Name: abi.NFTStampTable}

// stampState is the content of the second table in the kernel.
type stampState struct {
	// chains is nil if there is no table, or if the table is dormant or lacks its counter.
	chains  map[string]chains.Summary
	dropped uint64
}

// stampWanted returns the table as readStamp returns it, without the counter.
var stampWanted = sync.OnceValue(func() map[string]chains.Summary {
	out := map[string]chains.Summary{}
	for _, ch := range chains.StampChains() {
		out[ch.Name] = ch.Summary(nil)
	}
	return out
})

// whole reports whether the table has exactly the wanted chains and rules.
func (s stampState) whole() bool { return maps.Equal(s.chains, stampWanted()) }

// readStamp reads the table. A table that is dormant or lacks its counter is not whole.
func readStamp(c *nfnl.Conn) (s stampState, err error) {
	there, dormant, err := message.ReadTable(c, stampTable.Name)
	if err != nil || !there {
		return s, err
	}
	counters, err := message.ReadCounters(c, stampTable.Name)
	if err != nil {
		return s, err
	}
	dropped, has := counters[chains.Unstamped]
	if s.dropped = dropped; !has || dormant {
		return s, nil
	}
	s.chains, err = message.ReadChains(c, stampTable.Name)
	return s, err
}

// writeStamp adds the table to a transaction. It replaces an existing table.
func writeStamp(t *message.Transaction, dropped uint64) {
	t.AddTable(stampTable.Name)
	t.DeleteTable(stampTable.Name)
	t.AddTable(stampTable.Name)
	t.AddCounter(stampTable.Name, chains.Unstamped, dropped)
	for _, ch := range chains.StampChains() {
		t.AddChain(stampTable.Name, ch.Name, &ch.Chain)
		t.AddRules(stampTable.Name, ch.Name, ch.Rules(nil))
	}
}
