package nftables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nfnl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables/chains"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables/sets"
)

// state is the content of the table in the kernel. Nil means that there is no table.
type state struct {
	chains   map[string]chains.Summary
	sets     map[string]sets.Union
	counters map[string]bool
}

var ourTable = &nftables.Table{Family: nftables.TableFamilyINet, Name: abi.NFTPolicyTable}

// ask returns a request to dump a table's objects.
func ask(message uint16, table string) *nfnl.Messages {
	var t transaction
	t.begin(message, 0, table)
	return &t.Messages
}

// dump calls each with every object of a kind. A missing table has no objects.
func dump(c *nfnl.Conn, request *nfnl.Messages, begin func(), each func(attributes []byte)) error {
	err := c.Dump(request, begin, func(attributes []byte) error {
		each(attributes)
		return nil
	})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// readTable reports whether there is a table, and whether another program turned its hooks off.
func readTable(c *nfnl.Conn, name string) (there, dormant bool, err error) {
	const flagDormant = 1 // NFT_TABLE_F_DORMANT
	var request nfnl.Messages
	request.Begin(kindOf(unix.NFT_MSG_GETTABLE), 0, unix.NFPROTO_INET)
	err = dump(c, &request, func() { there, dormant = false, false }, func(attributes []byte) {
		if nfnl.Text(nfnl.Find(attributes, unix.NFTA_TABLE_NAME)) != name {
			return
		}
		flags := nfnl.Find(attributes, unix.NFTA_TABLE_FLAGS)
		there, dormant = true, len(flags) == 4 && binary.BigEndian.Uint32(flags)&flagDormant != 0
	})
	if err != nil {
		return false, false, fmt.Errorf("look for nftables table %s: %w", name, err)
	}
	return there, dormant, nil
}

// read reads the table of the network namespace of c. A dormant table, which judges nothing, counts
// as missing, so it is made again.
func read(c *nfnl.Conn) (*state, error) {
	there, dormant, err := readTable(c, ourTable.Name)
	if err != nil || !there || dormant {
		return nil, err
	}
	s := &state{sets: map[string]sets.Union{}, counters: map[string]bool{}}
	if s.chains, err = readChains(c, ourTable.Name); err != nil {
		return nil, err
	}
	if err := s.readSets(c); err != nil {
		return nil, err
	}
	counters, err := readCounters(c, ourTable.Name)
	for name := range counters {
		s.counters[name] = true
	}
	return s, err
}

// readChains reads the chains of a table by their names.
func readChains(c *nfnl.Conn, table string) (map[string]chains.Summary, error) {
	out := map[string]chains.Summary{}
	err := dump(c, ask(unix.NFT_MSG_GETCHAIN, table), func() { clear(out) }, func(b []byte) {
		if nfnl.Text(nfnl.Find(b, unix.NFTA_CHAIN_TABLE)) == table { // The dump has all tables.
			out[nfnl.Text(nfnl.Find(b, unix.NFTA_CHAIN_NAME))] = chains.Summary{Hook: hookOf(b)}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list chains of %s: %w", table, err)
	}

	for name, chain := range out {
		err := readRules(c, table, name, func() { chain.Texts = chains.Digest{} },
			func(_, text []byte) { chain.Texts.Add(text) })
		if err != nil {
			return nil, err
		}
		out[name] = chain
	}
	return out, nil
}

// readRules calls each with the handle and the comment of every rule of a chain, which are valid
// until it returns. begin is called before the first, and again when the dump starts over. Rules
// are read chain by chain, because for each part of an answer the kernel searches again for the
// place where the last part ended.
func readRules(c *nfnl.Conn, table, chain string, begin func(), each func(handle, text []byte)) error {
	request := ask(unix.NFT_MSG_GETRULE, table)
	request.String(unix.NFTA_RULE_CHAIN, chain)
	err := dump(c, request, begin, func(b []byte) {
		each(nfnl.Find(b, unix.NFTA_RULE_HANDLE), comment(nfnl.Find(b, unix.NFTA_RULE_USERDATA)))
	})
	if err != nil {
		return fmt.Errorf("list rules of chain %s of %s: %w", chain, table, err)
	}
	return nil
}

// comment returns the comment of a rule without the zero byte at its end, or nil if there is none.
func comment(data []byte) []byte {
	for len(data) >= 2 && len(data) >= 2+int(data[1]) {
		value := data[2 : 2+int(data[1])]
		if userdata.Type(data[0]) == userdata.TypeComment {
			return value[:max(0, len(value)-1)]
		}
		data = data[2+len(value):]
	}
	return nil
}

// hookOf describes the hook of a chain that was read. It returns "" for a chain without a hook.
func hookOf(chain []byte) string {
	hook := nfnl.Find(chain, unix.NFTA_CHAIN_HOOK)
	number, priority := nfnl.Find(hook, unix.NFTA_HOOK_HOOKNUM), nfnl.Find(hook,
		unix.NFTA_HOOK_PRIORITY)
	if len(number) != 4 || len(priority) != 4 {
		return ""
	}
	return chains.HookText(binary.BigEndian.Uint32(number), int32(binary.BigEndian.Uint32(priority)))
}

// readCounters reads the packets of a table's counters by their names.
func readCounters(c *nfnl.Conn, table string) (map[string]uint64, error) {
	out := map[string]uint64{}
	request := ask(unix.NFT_MSG_GETOBJ, table)
	request.Uint32(unix.NFTA_OBJ_TYPE, unix.NFT_OBJECT_COUNTER)
	err := dump(c, request, func() { clear(out) }, func(b []byte) {
		packets := nfnl.Find(nfnl.Find(b, unix.NFTA_OBJ_DATA), unix.NFTA_COUNTER_PACKETS)
		if len(packets) == 8 {
			out[nfnl.Text(nfnl.Find(b, unix.NFTA_OBJ_NAME))] = binary.BigEndian.Uint64(packets)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list counters of %s: %w", table, err)
	}
	return out, nil
}

func (s *state) readSets(c *nfnl.Conn) error {
	var names []string
	err := dump(c, ask(unix.NFT_MSG_GETSET, ourTable.Name), func() { names = nil }, func(b []byte) {
		names = append(names, nfnl.Text(nfnl.Find(b, unix.NFTA_SET_NAME)))
	})
	if err != nil {
		return fmt.Errorf("list sets of %s: %w", ourTable.Name, err)
	}
	for _, name := range slices.Compact(names) {
		keys, err := readSet(c, name)
		if err != nil {
			return err
		}
		s.sets[name] = sets.Union{keys}
	}
	return nil
}

// readSet reads the elements of a set of the table.
func readSet(c *nfnl.Conn, name string) (sets.Elements, error) {
	out := sets.Elements{}
	request := ask(unix.NFT_MSG_GETSETELEM, ourTable.Name)
	request.String(unix.NFTA_SET_ELEM_LIST_SET, name)
	err := c.Dump(request, func() { clear(out) }, func(b []byte) error {
		for _, element := range nfnl.Attributes(nfnl.Find(b, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			out[readElement(element)] = true
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list elements of %s: %w", name, err)
	}
	return out, nil
}

func readElement(element []byte) string {
	var value, last []byte
	first := byte(0)
	for kind, data := range nfnl.Attributes(element) {
		switch kind {
		case unix.NFTA_SET_ELEM_KEY:
			value = nfnl.Find(data, unix.NFTA_DATA_VALUE)
		case elementKeyEnd:
			last = nfnl.Find(data, unix.NFTA_DATA_VALUE)
		case unix.NFTA_SET_ELEM_FLAGS:
			if len(data) == 4 && binary.BigEndian.Uint32(data)&unix.NFT_SET_ELEM_INTERVAL_END != 0 {
				first = 1
			}
		}
	}
	if last != nil {
		first = sets.KeyRange[0]
	}
	return string(append(append([]byte{first}, value...), last...))
}
