package hostnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/config"
)

var natTable = &nftables.Table{Family: nftables.TableFamilyINet, Name: config.NFTNatTable}

// natChain is where masquerading happens: at postrouting, where the kernel
// translates sources.
func natChain() *nftables.Chain {
	return &nftables.Chain{
		Name: "postrouting", Table: natTable, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
	}
}

// natExprs masquerades packets from pods that leave by a link which is neither a
// tunnel nor another pod:
//
//	meta mark & PodMark == PodMark oifgroup != PodGroup oifgroup != TunnelGroup masquerade
func natExprs() []expr.Any {
	mark := binary.NativeEndian.AppendUint32(nil, config.PodMark)
	notGroup := func(group uint32) []expr.Any {
		return []expr.Any{
			&expr.Meta{Key: expr.MetaKeyOIFGROUP, Register: 1},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: binary.NativeEndian.AppendUint32(nil, group)},
		}
	}
	exprs := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mark, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: mark},
	}
	exprs = append(exprs, notGroup(config.PodGroup)...)
	exprs = append(exprs, notGroup(config.TunnelGroup)...)
	return append(exprs, &expr.Masq{})
}

// natLines is the canonical text of what applyNAT makes.
func natLines() []string {
	return []string{tableLine, chainLine(natChain()), ruleLine("postrouting", natExprs())}
}

const tableLine = "table inet " + config.NFTNatTable

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
	return fmt.Sprintf("chain %s type %s hook %s priority %s policy %s", c.Name, c.Type, hook, prio, policy)
}

func ruleLine(chain string, exprs []expr.Any) string {
	line := "rule " + chain
	for _, e := range exprs {
		switch e := e.(type) {
		case *expr.Meta:
			if e.Key == expr.MetaKeyMARK {
				line += " mark"
			} else if e.Key == expr.MetaKeyOIFGROUP {
				line += " oifgroup"
			} else {
				line += fmt.Sprintf(" meta %d", e.Key)
			}
		case *expr.Bitwise:
			line += fmt.Sprintf(" & %#x ^ %#x", word(e.Mask), word(e.Xor))
		case *expr.Cmp:
			op := map[expr.CmpOp]string{expr.CmpOpEq: "==", expr.CmpOpNeq: "!="}[e.Op]
			line += fmt.Sprintf(" %s %#x", op, word(e.Data))
		case *expr.Masq:
			line += " masquerade"
			if *e != (expr.Masq{}) {
				line += fmt.Sprintf(" %+v", *e)
			}
		default:
			line += fmt.Sprintf(" %T%+v", e, e)
		}
	}
	return line
}

// word is b as a number, all ones when it is not one.
func word(b []byte) uint32 {
	if len(b) != 4 {
		return ^uint32(0)
	}
	return binary.NativeEndian.Uint32(b)
}

// readNAT gives the canonical text of our table; nil when there is none.
func readNAT() ([]string, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, err
	}
	if _, err := c.ListTableOfFamily(natTable.Name, natTable.Family); err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, os.ErrNotExist) {
			return nil, nil
		}
		return nil, err
	}
	chains, err := c.ListChainsOfTableFamily(natTable.Family)
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	lines := []string{tableLine}
	for _, chain := range chains {
		if chain.Table.Name != natTable.Name {
			continue
		}
		lines = append(lines, chainLine(chain))
		rules, err := c.GetRules(natTable, chain)
		if err != nil {
			return nil, fmt.Errorf("list rules of chain %s: %w", chain.Name, err)
		}
		for _, r := range rules {
			lines = append(lines, ruleLine(chain.Name, r.Exprs))
		}
	}
	return lines, nil
}

// applyNAT replaces our table in one transaction; without want it only goes.
func applyNAT(want bool) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	// Deleting needs it to exist; adding what exists changes nothing.
	c.AddTable(natTable)
	c.DelTable(natTable)
	if want {
		c.AddTable(natTable)
		chain := c.AddChain(natChain())
		c.AddRule(&nftables.Rule{Table: natTable, Chain: chain, Exprs: natExprs()})
	}
	if err := c.Flush(); err != nil && !(errors.Is(err, unix.ENOENT) && !want) {
		return err
	}
	return nil
}
