package hostnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// nftTable is a table of ours, of family inet.
type nftTable struct {
	name   string
	chains []nftChain
	// flowtable reports whether there is a flow table in it, for packets that come in by links.
	flowtable bool
	links     []string
}

// nftChain is a base chain and its rules.
type nftChain struct {
	nftables.Chain
	rules [][]expr.Any
}

func (t nftTable) kernel() *nftables.Table {
	return &nftables.Table{Family: nftables.TableFamilyINet, Name: t.name}
}

// lines is the canonical text of what apply makes.
func (t nftTable) lines() []string {
	lines := []string{tableLine(t.name)}
	if t.flowtable {
		lines = append(lines, flowtableLine(flowtableName))
	}
	for _, c := range t.chains {
		lines = append(lines, chainLine(&c.Chain))
		for _, exprs := range c.rules {
			lines = append(lines, ruleLine(c.Name, exprs))
		}
	}
	return lines
}

func tableLine(name string) string { return "table inet " + name }

// flowtableLine leaves out the links, which come and go.
func flowtableLine(name string) string { return "flowtable " + name }

func chainLine(c *nftables.Chain) string {
	hook, prio := "none", "none"
	if c.Hooknum != nil {
		hook = fmt.Sprint(*c.Hooknum)
	}
	if c.Priority != nil {
		prio = fmt.Sprint(*c.Priority)
	}
	policy := "accept"
	if c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop {
		policy = "drop"
	}
	return fmt.Sprintf("chain %s type %s hook %s priority %s policy %s", c.Name, c.Type, hook, prio,
		policy)
}

func ruleLine(chain string, exprs []expr.Any) string {
	line := "rule " + chain
	for _, e := range exprs {
		switch e := e.(type) {
		case *expr.Meta:
			line += metaText(e)
		case *expr.Bitwise:
			line += fmt.Sprintf(" & %#x ^ %#x", word(e.Mask), word(e.Xor))
		case *expr.Cmp:
			op := map[expr.CmpOp]string{expr.CmpOpEq: "==", expr.CmpOpNeq: "!="}[e.Op]
			if len(e.Data) == 4 {
				line += fmt.Sprintf(" %s %#x", op, word(e.Data))
			} else {
				line += fmt.Sprintf(" %s %x", op, e.Data)
			}
		case *expr.Payload:
			line += payloadText(e)
		case *expr.Immediate:
			line += fmt.Sprintf(" %x", e.Data)
		case *expr.Masq:
			line += " masquerade"
			if *e != (expr.Masq{}) {
				line += fmt.Sprintf(" %+v", *e)
			}
		case *expr.Verdict:
			line += verdictText(e)
		default:
			line += fmt.Sprintf(" %T%+v", e, e)
		}
	}

	return line
}

func metaText(e *expr.Meta) string {
	switch e.Key {
	case expr.MetaKeyMARK:
		return " mark"
	case expr.MetaKeyIIFGROUP:
		return " iifgroup"
	case expr.MetaKeyOIFGROUP:
		return " oifgroup"
	case expr.MetaKeyNFPROTO:
		return " nfproto"
	case expr.MetaKeyL4PROTO:
		return " l4proto"
	}
	return fmt.Sprintf(" meta %d", e.Key)
}

// payloadText names a field as nft does: @base,bit,bits.
func payloadText(e *expr.Payload) string {
	base := map[expr.PayloadBase]string{expr.PayloadBaseNetworkHeader: "@nh",
		expr.PayloadBaseTransportHeader: "@th"}[e.Base]
	field := fmt.Sprintf("%s,%d,%d", base, 8*e.Offset, 8*e.Len)
	if e.OperationType == expr.PayloadWrite {
		return fmt.Sprintf(" set %s checksum %d at %d flags %d", field, e.CsumType, e.CsumOffset,
			e.CsumFlags)
	}
	return " " + field
}

func verdictText(e *expr.Verdict) string {
	if e.Kind == expr.VerdictDrop {
		return " drop"
	}
	return fmt.Sprintf(" verdict %d %s", e.Kind, e.Chain)
}

// word is b as a number, all ones when it is not one.
func word(b []byte) uint32 {
	if len(b) != 4 {
		return ^uint32(0)
	}
	return binary.NativeEndian.Uint32(b)
}

// readNFT returns the canonical text of the table of that name, nil when there is none, and the
// links of its flow table.
func readNFT(name string) (lines, links []string, err error) {
	c, err := nftables.New()
	if err != nil {
		return nil, nil, err
	}
	t, err := c.ListTableOfFamily(name, nftables.TableFamilyINet)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	chains, err := c.ListChainsOfTableFamily(t.Family)
	if err != nil {
		return nil, nil, fmt.Errorf("list chains: %w", err)
	}

	lines = []string{tableLine(name)}
	// Only there: a kernel without flow tables need not know how to list them.
	if slices.Contains(flowTableNames, name) {
		tables, err := c.ListFlowtables(t)
		if err != nil {
			return nil, nil, fmt.Errorf("list flow tables: %w", err)
		}
		for _, f := range tables {
			lines, links = append(lines, flowtableLine(f.Name)), append(links, f.Devices...)
		}
	}

	for _, chain := range chains {
		if chain.Table.Name != name {
			continue
		}
		lines = append(lines, chainLine(chain))
		rules, err := c.GetRules(t, chain)
		if err != nil {
			return nil, nil, fmt.Errorf("list rules of chain %s: %w", chain.Name, err)
		}
		for _, r := range rules {
			lines = append(lines, ruleLine(chain.Name, r.Exprs))
		}
	}

	return lines, links, nil
}

// apply replaces the table in one transaction; without chains it only goes.
func (t nftTable) apply() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	// Deleting needs it to exist; adding what exists changes nothing.
	table := c.AddTable(t.kernel())
	c.DelTable(table)
	if len(t.chains) > 0 {
		c.AddTable(table)
	}
	if t.flowtable && len(t.chains) > 0 {
		c.AddFlowtable(t.flows())
	}
	for _, chain := range t.chains {
		made := chain.Chain
		made.Table = table
		c.AddChain(&made)
		for _, exprs := range chain.rules {
			c.AddRule(&nftables.Rule{Table: table, Chain: &made, Exprs: exprs})
		}
	}
	if err := c.Flush(); err != nil && !(errors.Is(err, unix.ENOENT) && len(t.chains) == 0) {
		return err
	}
	return nil
}
