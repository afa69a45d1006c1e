package nft

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nfnl"
)

// Search looks for elements in the sets of a table. keys returns the elements to look for in the set
// of that name, of which Search uses the Key. For each element in a set it returns an Elements that
// removes it. Search reads no other element. It finds nothing in a table or set that does not exist.
func (c *Conn) Search(table string, keys func(set string) []Element) (found []Elements, err error) {
	conn, err := c.Messages()
	if err != nil {
		return nil, err
	}
	names, err := setNames(conn, table)
	if err != nil {
		return nil, err
	}

	var request nfnl.Messages
	var asked []Elements
	for _, name := range names {
		for _, e := range keys(name) {
			asked = append(asked, Elements{Table: table, Set: name, Remove: []Element{e}})
			beginMessage(&request, unix.NFT_MSG_GETSETELEM)
			request.String(unix.NFTA_SET_ELEM_LIST_TABLE, table)
			request.String(unix.NFTA_SET_ELEM_LIST_SET, name)
			elements := request.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS | unix.NLA_F_NESTED)
			element := request.Nest(unix.NFTA_LIST_ELEM | unix.NLA_F_NESTED)
			key := request.Nest(unix.NFTA_SET_ELEM_KEY | unix.NLA_F_NESTED)
			request.Bytes(unix.NFTA_DATA_VALUE, []byte(e.Key))
			key()
			element()
			elements()
		}
	}
	answered, err := conn.Ask(&request, unix.ENOENT)
	if err != nil {
		return nil, fmt.Errorf("nft table inet %s: look for elements: %w", table, err)
	}
	for _, i := range answered {
		found = append(found, asked[i])
	}
	return found, nil
}

func beginMessage(m *nfnl.Messages, message uint16) {
	m.Begin(unix.NFNL_SUBSYS_NFTABLES<<8|message, 0, unix.NFPROTO_INET)
}

// setNames returns the names of the sets of a table. A missing table has none.
func setNames(c *nfnl.Conn, table string) (names []string, err error) {
	var request nfnl.Messages
	beginMessage(&request, unix.NFT_MSG_GETSET)
	request.String(unix.NFTA_SET_TABLE, table)
	err = c.Dump(&request, func() { names = nil }, func(set []byte) error {
		if nfnl.Text(nfnl.Find(set, unix.NFTA_SET_TABLE)) == table {
			names = append(names, nfnl.Text(nfnl.Find(set, unix.NFTA_SET_NAME)))
		}
		return nil
	})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("nft table inet %s: list sets: %w", table, err)
	}
	return names, nil
}
