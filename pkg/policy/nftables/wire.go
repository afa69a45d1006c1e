package nftables

import (
	"encoding/binary"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nfnl"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables/chains"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables/sets"
)

// transaction collects messages of nftables about tables of the family inet. The kernel applies all
// or none of them. The zero value is ready.
type transaction struct{ nfnl.Messages }

// begin begins a message. The table's name is the first attribute of every message.
func (t *transaction) begin(message, flags uint16, table string) {
	const nameOfTable = 1 // NFTA_TABLE_NAME, NFTA_CHAIN_TABLE, NFTA_RULE_TABLE, …
	t.Begin(kindOf(message), flags, unix.NFPROTO_INET)
	t.String(nameOfTable, table)
}

func kindOf(message uint16) uint16 { return unix.NFNL_SUBSYS_NFTABLES<<8 | message }

// commit sends the transaction.
func (t *transaction) commit(c *nfnl.Conn) error {
	return c.Commit(unix.NFNL_SUBSYS_NFTABLES, &t.Messages)
}

func (t *transaction) addTable(table string) {
	t.begin(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, table)
}

func (t *transaction) deleteTable(table string) { t.begin(unix.NFT_MSG_DELTABLE, 0, table) }

// addCounter adds a counter that begins with a number of packets.
func (t *transaction) addCounter(table, name string, packets uint64) {
	t.begin(unix.NFT_MSG_NEWOBJ, unix.NLM_F_CREATE, table)
	t.String(unix.NFTA_OBJ_NAME, name)
	t.Uint32(unix.NFTA_OBJ_TYPE, unix.NFT_OBJECT_COUNTER)
	end := t.Nest(unix.NFTA_OBJ_DATA | unix.NLA_F_NESTED)
	t.Bytes(unix.NFTA_COUNTER_BYTES, make([]byte, 8))
	t.Bytes(unix.NFTA_COUNTER_PACKETS, binary.BigEndian.AppendUint64(nil, packets))
	end()
}

// addChain adds a chain without rules. A chain at a hook accepts packets that its rules do not
// drop.
func (t *transaction) addChain(table, name string, c *chains.Chain) {
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

func (t *transaction) deleteChain(table, name string) {
	t.begin(unix.NFT_MSG_DELCHAIN, 0, table)
	t.String(unix.NFTA_CHAIN_NAME, name)
}

// flushChain deletes the rules of a chain.
func (t *transaction) flushChain(table, name string) {
	t.begin(unix.NFT_MSG_DELRULE, 0, table)
	t.String(unix.NFTA_RULE_CHAIN, name)
}

// addRules adds rules at the end of a chain.
func (t *transaction) addRules(table, chain string, rules []chains.Rule) {
	for _, r := range rules {
		t.addRule(table, chain, placed{Rule: r})
	}
}

func (t *transaction) addRule(table, chain string, r placed) {
	flags := uint16(unix.NLM_F_CREATE)
	if r.before == nil {
		flags |= unix.NLM_F_APPEND
	}
	t.begin(unix.NFT_MSG_NEWRULE, flags, table)
	t.String(unix.NFTA_RULE_CHAIN, chain)
	end := t.Nest(unix.NFTA_RULE_EXPRESSIONS | unix.NLA_F_NESTED)
	t.Encoded(r.Exprs)
	end()
	if r.before != nil {
		t.Bytes(unix.NFTA_RULE_POSITION, r.before)
	}
	t.Bytes(unix.NFTA_RULE_USERDATA, userdata.AppendString(nil, userdata.TypeComment, r.Text))
}

// editRules edits the rules of a chain.
func (t *transaction) editRules(table, chain string, e edit) {
	for _, handle := range e.remove {
		t.begin(unix.NFT_MSG_DELRULE, 0, table)
		t.String(unix.NFTA_RULE_CHAIN, chain)
		t.Bytes(unix.NFTA_RULE_HANDLE, handle)
	}
	for _, r := range e.add {
		t.addRule(table, chain, r)
	}
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

// addSet adds a set without elements.
func (t *transaction) addSet(table, name string, s *sets.Set) {
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

func (t *transaction) deleteSet(table, name string) {
	t.begin(unix.NFT_MSG_DELSET, 0, table)
	t.String(unix.NFTA_SET_NAME, name)
}

// chunk bounds the elements of one message: an attribute has at most 64 KiB.
const chunk = 500

func (t *transaction) addElements(table, set string, keys []string) {
	t.elements(unix.NFT_MSG_NEWSETELEM, table, set, keys)
}

func (t *transaction) deleteElements(table, set string, keys []string) {
	t.elements(unix.NFT_MSG_DELSETELEM, table, set, keys)
}

func (t *transaction) elements(message uint16, table, set string, keys []string) {
	for len(keys) > 0 {
		n := min(len(keys), chunk)
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
