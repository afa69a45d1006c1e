package message

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nfnl"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables/chains"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables/sets"
)

// ask returns a request to dump a table's objects.
func ask(message uint16, table string) *nfnl.Messages {
	var t Transaction
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

// ReadTable reports whether there is a table, and whether another program turned its hooks off.
func ReadTable(c *nfnl.Conn, name string) (there, dormant bool, err error) {
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

// ReadChains reads the chains of a table by their names.
func ReadChains(c *nfnl.Conn, table string) (map[string]chains.Summary, error) {
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
		err := ReadRules(c, table, name, func() { chain.Texts = chains.Digest{} },
			func(_, text []byte) { chain.Texts.Add(text) })
		if err != nil {
			return nil, err
		}
		out[name] = chain
	}
	return out, nil
}

// ReadRules calls each with the handle and the comment of every rule of a chain, which are valid
// until it returns. begin is called before the first, and again when the dump starts over. Rules
// are read chain by chain, because for each part of an answer the kernel searches again for the
// place where the last part ended.
func ReadRules(c *nfnl.Conn, table, chain string, begin func(),
	each func(handle, text []byte)) error {
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

// ReadCounters reads the packets of a table's counters by their names.
func ReadCounters(c *nfnl.Conn, table string) (map[string]uint64, error) {
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

// SetNames reads the names of a table's sets.
func SetNames(c *nfnl.Conn, table string) (names []string, err error) {
	err = dump(c, ask(unix.NFT_MSG_GETSET, table), func() { names = nil }, func(b []byte) {
		names = append(names, nfnl.Text(nfnl.Find(b, unix.NFTA_SET_NAME)))
	})
	if err != nil {
		return nil, fmt.Errorf("list sets of %s: %w", table, err)
	}
	return names, nil
}

// ReadSet reads the elements of a set of a table. A missing set is an error (unix.ENOENT).
func ReadSet(c *nfnl.Conn, table, name string) (sets.Elements, error) {
	out := sets.Elements{}
	request := ask(unix.NFT_MSG_GETSETELEM, table)
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

// Generation returns the generation of the ruleset of the connection's network namespace, which is
// never 0. Each transaction of any program adds one to it.
func Generation(c *nfnl.Conn) (n uint32, err error) {
	var request nfnl.Messages
	request.Begin(kindOf(unix.NFT_MSG_GETGEN), 0, unix.AF_UNSPEC)
	err = c.Get(&request, func(attributes []byte) error {
		if id := nfnl.Find(attributes, unix.NFTA_GEN_ID); len(id) == 4 {
			n = binary.BigEndian.Uint32(id)
		}
		return nil
	})
	if err == nil && n == 0 {
		err = errors.New("the kernel did not return it")
	}
	if err != nil {
		return 0, fmt.Errorf("read the generation of nftables: %w", err)
	}
	return n, nil
}
