package message

import (
	"encoding/binary"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nfnl"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables/chains"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables/sets"
)

// Transaction collects changes of tables of the family inet. The kernel applies all or none of them.
// The zero value is ready. It is not safe for concurrent use.
type Transaction struct{ nfnl.Messages }

// begin begins a message. The table's name is the first attribute of every message.
func (t *Transaction) begin(message, flags uint16, table string) {
	const nameOfTable = 1 // NFTA_TABLE_NAME, NFTA_CHAIN_TABLE, NFTA_RULE_TABLE, …
	t.Begin(kindOf(message), flags, unix.NFPROTO_INET)
	t.String(nameOfTable, table)
}

func kindOf(message uint16) uint16 { return unix.NFNL_SUBSYS_NFTABLES<<8 | message }

// Commit sends the transaction.
func (t *Transaction) Commit(c *nfnl.Conn) error {
	return c.Commit(unix.NFNL_SUBSYS_NFTABLES, &t.Messages)
}

// AddTable adds a table. It does nothing if the table exists.
func (t *Transaction) AddTable(table string) {
	t.begin(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, table)
}

// DeleteTable deletes a table with everything in it. The kernel refuses it without a table.
func (t *Transaction) DeleteTable(table string) { t.begin(unix.NFT_MSG_DELTABLE, 0, table) }

// AddCounter adds a counter that begins with a number of packets.
func (t *Transaction) AddCounter(table, name string, packets uint64) {
	t.begin(unix.NFT_MSG_NEWOBJ, unix.NLM_F_CREATE, table)
	t.String(unix.NFTA_OBJ_NAME, name)
	t.Uint32(unix.NFTA_OBJ_TYPE, unix.NFT_OBJECT_COUNTER)
	end := t.Nest(unix.NFTA_OBJ_DATA | unix.NLA_F_NESTED)
	t.Bytes(unix.NFTA_COUNTER_BYTES, make([]byte, 8))
	t.Bytes(unix.NFTA_COUNTER_PACKETS, binary.BigEndian.AppendUint64(nil, packets))
	end()
}

// AddChain adds a chain without rules. A chain at a hook accepts packets that its rules do not
// drop.
func (t *Transaction) AddChain(table, name string, c *chains.Chain) {
	t.begin(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, table)
	t.String(unix.NFTA_CHAIN_NAME, name)
	if c.Hook == nil {
		return
	}
	end := t.Nest(unix.NFTA_CHAIN_HOOK | unix.NLA_F_NESTED)
	t.Uint32(unix.NFTA_HOOK_HOOKNUM, uint32(*c.Hook))
	t.Uint32(unix.NFTA_HOOK_PRIORITY, uint32(c.Priority))
	end()
	t.Uint32(unix.NFTA_CHAIN_POLICY, uint32(nftables.ChainPolicyAccept))
	t.String(unix.NFTA_CHAIN_TYPE, string(nftables.ChainTypeFilter))
}

// DeleteChain deletes a chain. The kernel refuses it while a rule goes there.
func (t *Transaction) DeleteChain(table, name string) {
	t.begin(unix.NFT_MSG_DELCHAIN, 0, table)
	t.String(unix.NFTA_CHAIN_NAME, name)
}

// FlushChain deletes all rules of a chain.
func (t *Transaction) FlushChain(table, name string) {
	t.begin(unix.NFT_MSG_DELRULE, 0, table)
	t.String(unix.NFTA_RULE_CHAIN, name)
}

// AddRules adds rules at the end of a chain.
func (t *Transaction) AddRules(table, chain string, rules []chains.Rule) {
	for _, r := range rules {
		t.AddRule(table, chain, r, nil)
	}
}

// AddRule adds a rule in front of the rule with a handle. A nil handle means the end of the chain.
func (t *Transaction) AddRule(table, chain string, r chains.Rule, before []byte) {
	flags := uint16(unix.NLM_F_CREATE)
	if before == nil {
		flags |= unix.NLM_F_APPEND
	}
	t.begin(unix.NFT_MSG_NEWRULE, flags, table)
	t.String(unix.NFTA_RULE_CHAIN, chain)
	end := t.Nest(unix.NFTA_RULE_EXPRESSIONS | unix.NLA_F_NESTED)
	t.Encoded(r.Exprs)
	end()
	if before != nil {
		t.Bytes(unix.NFTA_RULE_POSITION, before)
	}
	t.Bytes(unix.NFTA_RULE_USERDATA, userdata.AppendString(nil, userdata.TypeComment, r.Text))
}

// DeleteRule deletes the rule of a chain that has a handle.
func (t *Transaction) DeleteRule(table, chain string, handle []byte) {
	t.begin(unix.NFT_MSG_DELRULE, 0, table)
	t.String(unix.NFTA_RULE_CHAIN, chain)
	t.Bytes(unix.NFTA_RULE_HANDLE, handle)
}

// Flags and descriptions of sets that package unix lacks.
const (
	setConcat     = 0x80 // NFT_SET_CONCAT
	descConcat    = 2    // NFTA_SET_DESC_CONCAT
	fieldSize     = 1    // NFTA_SET_FIELD_LEN
	listElement   = unix.NFTA_LIST_ELEM | unix.NLA_F_NESTED
	keyOfElement  = unix.NFTA_SET_ELEM_KEY | unix.NLA_F_NESTED
	lastOfElement = elementKeyEnd | unix.NLA_F_NESTED
	elementKeyEnd = 10 // NFTA_SET_ELEM_KEY_END
	setIDOfNewSet = 1  // The kernel requires an ID; nothing refers to it.
)

// AddSet adds a set without elements.
func (t *Transaction) AddSet(table, name string, s *sets.Set) {
	var flags uint32
	if s.Interval {
		flags |= unix.NFT_SET_INTERVAL
	}
	if s.Concat {
		flags |= setConcat
	}
	if s.Timeout > 0 {
		flags |= unix.NFT_SET_TIMEOUT
	}
	if s.Room > 0 {
		flags |= unix.NFT_SET_EVAL
	}
	t.begin(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, table)
	t.String(unix.NFTA_SET_NAME, name)
	t.Uint32(unix.NFTA_SET_FLAGS, flags)
	t.Uint32(unix.NFTA_SET_KEY_TYPE, s.Key.GetNFTMagic())
	t.Uint32(unix.NFTA_SET_KEY_LEN, s.Key.Bytes)
	t.Uint32(unix.NFTA_SET_ID, setIDOfNewSet)
	if s.Timeout > 0 {
		t.Bytes(unix.NFTA_SET_TIMEOUT,
			binary.BigEndian.AppendUint64(nil, uint64(s.Timeout.Milliseconds())))
	}

	if s.Room > 0 || s.Concat {
		endDesc := t.Nest(unix.NFTA_SET_DESC | unix.NLA_F_NESTED)
		if s.Room > 0 {
			t.Uint32(unix.NFTA_SET_DESC_SIZE, s.Room)
		}
		if s.Concat { // nft cannot list the set without the sizes of its fields
			endConcat := t.Nest(descConcat | unix.NLA_F_NESTED)
			for _, field := range nftables.ConcatSetTypeElements(s.Key) {
				end := t.Nest(listElement)
				t.Uint32(fieldSize, field.Bytes)
				end()
			}
			endConcat()
		}
		endDesc()
	}
	if s.Interval {
		const bigEndian = 2
		t.Bytes(unix.NFTA_SET_USERDATA, userdata.AppendUint32(nil,
			userdata.NFTNL_UDATA_SET_KEYBYTEORDER, bigEndian))
	}
}

// DeleteSet deletes a set. The kernel refuses it while a rule looks the set up.
func (t *Transaction) DeleteSet(table, name string) {
	t.begin(unix.NFT_MSG_DELSET, 0, table)
	t.String(unix.NFTA_SET_NAME, name)
}

// Chunk bounds the elements of one message: an attribute has at most 64 KiB.
const Chunk = 500

// AddElements adds elements to a set. Keys have the form of sets.Key.
func (t *Transaction) AddElements(table, set string, keys []string) {
	t.elements(unix.NFT_MSG_NEWSETELEM, table, set, keys)
}

// DeleteElements deletes elements from a set. The kernel refuses it without one of them.
func (t *Transaction) DeleteElements(table, set string, keys []string) {
	t.elements(unix.NFT_MSG_DELSETELEM, table, set, keys)
}

func (t *Transaction) elements(message uint16, table, set string, keys []string) {
	for len(keys) > 0 {
		n := min(len(keys), Chunk)
		t.begin(message, unix.NLM_F_CREATE, table)
		t.String(unix.NFTA_SET_ELEM_LIST_SET, set)
		end := t.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS | unix.NLA_F_NESTED)
		for _, k := range keys[:n] {
			endElement := t.Nest(listElement)
			if k[0] == 1 {
				t.Uint32(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
			}
			value, last := []byte(k[1:]), []byte(nil)
			if k[0] == sets.KeyRange[0] {
				value, last = value[:len(value)/2], value[len(value)/2:]
			}
			endKey := t.Nest(keyOfElement)
			t.Bytes(unix.NFTA_DATA_VALUE, value)
			endKey()
			if last != nil {
				endLast := t.Nest(lastOfElement)
				t.Bytes(unix.NFTA_DATA_VALUE, last)
				endLast()
			}
			endElement()
		}
		end()
		keys = keys[n:]
	}
}
