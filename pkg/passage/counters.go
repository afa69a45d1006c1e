package passage

import (
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// Priorities of the chains: before and after any filter of others.
const (
	first = nftables.ChainPriority(-500)
	last  = nftables.ChainPriority(500)
)

var ourTable = &nftables.Table{Family: nftables.TableFamilyINet, Name: abi.NFTProbeTable}

// counters is a table that counts the datagrams of a probe.
type counters struct {
	nft   *nftables.Conn
	table *nftables.Table
	// entered and left have one rule for each way, in order.
	entered, left *nftables.Chain
}

// newCounters makes the table, in place of one that a killed process left.
func newCounters(link string, ways []Way) (*counters, error) {
	nft, err := nftables.New()
	if err != nil {
		return nil, err
	}
	nft.AddTable(ourTable)
	nft.DelTable(ourTable)
	nft.AddTable(ourTable)

	c := &counters{nft: nft, table: ourTable}
	c.entered = c.chain("entered", nftables.ChainHookForward, first)
	c.left = c.chain("left", nftables.ChainHookPostrouting, last)
	fromProbe := equal(expr.MetaKeyIIFNAME,
		append([]byte(link), make([]byte, unix.IFNAMSIZ-len(link))...))
	intoTunnel := equal(expr.MetaKeyOIFGROUP, binaryutil.NativeEndian.PutUint32(abi.TunnelGroup))
	for _, w := range ways {
		to := destination(w)
		c.rule(c.entered, fromProbe, to, []expr.Any{&expr.Counter{}})
		c.rule(c.left, fromProbe, intoTunnel, to,
			[]expr.Any{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop}})
	}
	c.rule(c.left, fromProbe, []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}})
	if err := nft.Flush(); err != nil {
		return nil, fmt.Errorf("make nft table inet %s: %w", abi.NFTProbeTable, err)
	}
	return c, nil
}

func (c *counters) chain(name string, hook *nftables.ChainHook,
	priority nftables.ChainPriority) *nftables.Chain {
	return c.nft.AddChain(&nftables.Chain{Name: name, Table: c.table,
		Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: &priority})
}

func (c *counters) rule(chain *nftables.Chain, parts ...[]expr.Any) {
	r := &nftables.Rule{Table: c.table, Chain: chain}
	for _, p := range parts {
		r.Exprs = append(r.Exprs, p...)
	}
	c.nft.AddRule(r)
}

// equal compares a property of the packet.
func equal(key expr.MetaKey, value []byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: key, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: value},
	}
}

// destination compares the destination address of a packet of the way's family.
func destination(w Way) []expr.Any {
	proto, offset := byte(unix.NFPROTO_IPV4), uint32(16) // RFC 791 section 3.1
	if w.To.Is6() {
		proto, offset = unix.NFPROTO_IPV6, 24 // RFC 8200 section 3
	}
	to := w.To.AsSlice()
	return append(equal(expr.MetaKeyNFPROTO, []byte{proto}),
		&expr.Payload{Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(len(to)),
			DestRegister: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: to})
}

// read returns how many datagrams of a way entered the forward hook and how many left.
func (c *counters) read(way int) (entered, left uint64, err error) {
	entered, err = c.count(c.entered, way)
	if err != nil {
		return 0, 0, err
	}
	left, err = c.count(c.left, way)
	return entered, left, err
}

func (c *counters) count(chain *nftables.Chain, way int) (uint64, error) {
	rules, err := c.nft.GetRules(c.table, chain)
	if err != nil {
		return 0, fmt.Errorf("read nft table inet %s: %w", abi.NFTProbeTable, err)
	}
	if way >= len(rules) {
		return 0, fmt.Errorf("nft table inet %s was changed by somebody", abi.NFTProbeTable)
	}
	for _, e := range rules[way].Exprs {
		if counter, ok := e.(*expr.Counter); ok {
			return counter.Packets, nil
		}
	}
	return 0, fmt.Errorf("nft table inet %s was changed by somebody", abi.NFTProbeTable)
}

// Remove deletes the table that a process left which was killed during a probe. That there
// is none is no error.
func Remove() error {
	nft, err := nftables.New()
	if err != nil {
		return err
	}
	return (&counters{nft: nft, table: ourTable}).remove()
}

// remove deletes the table. One that is gone already is no error.
func (c *counters) remove() error {
	c.nft.DelTable(c.table)
	if err := c.nft.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove nft table inet %s: %w", abi.NFTProbeTable, err)
	}
	return nil
}
