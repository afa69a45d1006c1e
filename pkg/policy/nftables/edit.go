package nftables

import (
	"slices"

	"github.com/kubeveil/kubeveil/internal/nfnl"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables/chains"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables/message"
)

// For each written rule, the kernel finds each set of the rule by a search of the list of all sets.
// The two chains that lead to the groups have a rule per group and family, and change with each
// group. So a chain that stays keeps the rules that stay.

// listed is a rule as a dump of the kernel returns it.
type listed struct {
	handle []byte // NFTA_RULE_HANDLE, 8 bytes
	text   string
}

// placed is a rule to insert in front of the rule with a handle. A nil handle means the end of the
// chain.
type placed struct {
	chains.Rule
	before []byte
}

// edit is a change of a chain's rules.
type edit struct {
	remove [][]byte // handles
	add    []placed // in the order in which they are written
}

// write adds the edit of a chain to a transaction.
func (e edit) write(t *message.Transaction, table, chain string) {
	for _, handle := range e.remove {
		t.DeleteRule(table, chain, handle)
	}
	for _, r := range e.add {
		t.AddRule(table, chain, r.Rule, r.before)
	}
}

// editOf returns the edit that turns have into want. ok is false if the rules that stay are in
// another order or are ambiguous.
func editOf(have []listed, want []chains.Rule) (e edit, ok bool) {
	at := make(map[string]int, len(want))
	for i, r := range want {
		at[r.Text] = i
	}
	if len(at) < len(want) {
		return e, false
	}

	kept := make([][]byte, len(want))
	last := -1
	for _, r := range have {
		i, stays := at[r.text]
		switch {
		case !stays:
			e.remove = append(e.remove, r.handle)
		case i <= last || len(r.handle) == 0:
			return e, false
		default:
			kept[i], last = r.handle, i
		}
	}

	var before []byte
	for i, r := range slices.Backward(want) {
		if kept[i] != nil {
			before = kept[i]
		} else {
			e.add = append(e.add, placed{r, before})
		}
	}
	slices.Reverse(e.add)
	return e, true
}

// findEdits reads the rules of the chains that stay and finds their edits for the content. A chain
// without an edit is written as a whole, because another program changed it.
func (d *difference) findEdits(c *nfnl.Conn, have *state, want *content,
	cached *chains.Fragments) error {
	d.edits = map[string]edit{}
	for _, name := range d.refill {
		var rules []listed
		var texts chains.Digest
		begin := func() { rules, texts = nil, chains.Digest{} }
		err := message.ReadRules(c, ourTable.Name, name, begin,
			func(handle, text []byte) {
				rules = append(rules, listed{slices.Clone(handle), string(text)})
				texts.Add(text)
			})
		if err != nil {
			return err
		}
		if e, ok := editOf(rules, want.chains[name].Rules(cached)); ok &&
			texts == have.chains[name].Texts {
			d.edits[name] = e
		}
	}
	return nil
}
