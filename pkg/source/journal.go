package source

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/cluster"
)

// record is a line of the journal, which follows the document of a snapshot in its file.
type record struct {
	// Checksum is the CRC-32C (RFC 3720, section 12.1) of the document and of all changes up to
	// this one, in hexadecimal digits. So a record is valid only in its place.
	Checksum string          `json:"checksum"`
	Change   json.RawMessage `json:"change"`
}

// recordStart is the beginning of each record that a Writer writes.
const recordStart = `{"checksum":"`

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// change is the difference of two tables with the same self, API servers and service ranges. Names
// and addresses that are gone are removed before the others are put.
type change struct {
	Revision uint64 `json:"revision"`
	// Gone are names of peers and keyless nodes. A node that moves from one list to the other is
	// gone and put.
	Gone []string `json:"gone,omitempty"`
	// Peers and Keyless are new or changed nodes.
	Peers   []cluster.Node `json:"peers,omitempty"`
	Keyless []cluster.Node `json:"keyless,omitempty"`
	// GoneAddrs and NodeAddrs are the changes of the table's NodeAddrs.
	GoneAddrs []netip.Addr `json:"goneAddrs,omitempty"`
	NodeAddrs []netip.Addr `json:"nodeAddrs,omitempty"`
}

// difference returns the change from was to is. peers may be the difference of their peers. ok is
// false if a change cannot describe it: if the tables differ elsewhere, or a list is not sorted.
func difference(was, is cluster.Table, peers cluster.Delta) (c change, ok bool) {
	sameSelf := was.Self == is.Self ||
		was.Self != nil && is.Self != nil && was.Self.Equal(*is.Self)
	if !sameSelf || !slices.Equal(was.APIServers, is.APIServers) ||
		!slices.Equal(was.ServiceRanges, is.ServiceRanges) {
		return change{}, false
	}

	if !peers.Between(was.Peers, is.Peers) {
		peers = cluster.NewDelta(was.Peers, is.Peers)
	}
	var gonePeers, goneKeyless []cluster.Node
	var okPeers, okKeyless, okAddrs bool
	c.Revision = is.Revision
	c.Peers, gonePeers, okPeers = peers.Changes()
	c.Keyless, goneKeyless, okKeyless = cluster.NewDelta(was.Keyless, is.Keyless).Changes()
	for _, n := range slices.Concat(gonePeers, goneKeyless) {
		c.Gone = append(c.Gone, n.Name)
	}
	c.NodeAddrs, c.GoneAddrs, okAddrs = changedAddrs(was.NodeAddrs, is.NodeAddrs)
	return c, okPeers && okKeyless && okAddrs
}

// empty reports whether c changes nothing but the revision.
func (c change) empty() bool {
	return len(c.Gone)+len(c.Peers)+len(c.Keyless)+len(c.GoneAddrs)+len(c.NodeAddrs) == 0
}

// changedAddrs returns the addresses of is that are not in was, and those of was that are not in
// is. ok is false if a list is not sorted, or has an address twice.
func changedAddrs(was, is []netip.Addr) (put, gone []netip.Addr, ok bool) {
	if len(was) == len(is) && (len(was) == 0 || &was[0] == &is[0]) {
		return nil, nil, true
	}
	for _, list := range [][]netip.Addr{was, is} {
		for i := 1; i < len(list); i++ {
			if list[i-1].Compare(list[i]) >= 0 {
				return nil, nil, false
			}
		}
	}

	for len(was) > 0 && len(is) > 0 {
		switch c := was[0].Compare(is[0]); {
		case c < 0:
			gone, was = append(gone, was[0]), was[1:]
		case c > 0:
			put, is = append(put, is[0]), is[1:]
		default:
			was, is = was[1:], is[1:]
		}
	}
	return append(put, is...), append(gone, was...), true
}

// encode returns the record of c and its checksum. sum is the checksum of the record before it, or
// of the document.
func (c change) encode(sum uint32) (line []byte, next uint32, err error) {
	text, err := json.Marshal(c)
	if err != nil {
		return nil, 0, fmt.Errorf("encode record of snapshot: %w", err)
	}
	next = crc32.Update(sum, castagnoli, text)
	return fmt.Appendf(nil, "%s%08x\",\"change\":%s}\n", recordStart, next, text), next, nil
}

// replay returns t, which is the table of the document in text, with the changes of the journal
// behind that. dec has read the document of text. A last record of which the end is missing is
// dropped: its writer died, or still writes.
func replay(t cluster.Table, dec *json.Decoder, text []byte) (cluster.Table, error) {
	end := dec.InputOffset()
	sum := crc32.Checksum(text[:end], castagnoli)
	var changed *replayed
	for n := 1; ; n++ {
		var r record
		switch err := dec.Decode(&r); {
		case errors.Is(err, io.EOF), err != nil && torn(text[end:]):
			if changed == nil {
				return t, nil
			}
			return changed.done(), nil
		case err != nil:
			return cluster.Table{}, fmt.Errorf("something follows the snapshot that is not record "+
				"%d of its journal: %w", n, err)
		}
		sum, end = crc32.Update(sum, castagnoli, r.Change), dec.InputOffset()
		if want := fmt.Sprintf("%08x", sum); r.Checksum != want {
			return cluster.Table{}, fmt.Errorf("something follows the snapshot that is not record "+
				"%d of its journal: its checksum is %q, not %s", n, r.Checksum, want)
		}

		var c change
		if err := json.Unmarshal(r.Change, &c); err != nil {
			return cluster.Table{}, fmt.Errorf("record %d of the journal: %w", n, err)
		}
		if changed == nil {
			changed = newReplayed(t)
		}
		changed.apply(c)
	}
}

// torn reports whether tail, which begins behind a record, is the beginning of another one. A
// record has one newline, its last byte.
func torn(tail []byte) bool {
	tail = bytes.TrimLeft(tail, "\n")
	n := min(len(tail), len(recordStart))
	return string(tail[:n]) == recordStart[:n] && !bytes.Contains(tail, []byte("\n"))
}

// replayed is a table to which changes are applied.
type replayed struct {
	table          cluster.Table
	peers, keyless map[string]cluster.Node
	addrs          map[netip.Addr]bool
}

func newReplayed(t cluster.Table) *replayed {
	byName := func(nodes []cluster.Node) map[string]cluster.Node {
		m := make(map[string]cluster.Node, len(nodes))
		for _, n := range nodes {
			m[n.Name] = n
		}
		return m
	}
	r := &replayed{table: t, peers: byName(t.Peers), keyless: byName(t.Keyless),
		addrs: make(map[netip.Addr]bool, len(t.NodeAddrs))}
	for _, a := range t.NodeAddrs {
		r.addrs[a] = true
	}
	return r
}

func (r *replayed) apply(c change) {
	r.table.Revision = c.Revision
	for _, name := range c.Gone {
		delete(r.peers, name)
		delete(r.keyless, name)
	}
	for _, n := range c.Peers {
		r.peers[n.Name] = n
	}
	for _, n := range c.Keyless {
		r.keyless[n.Name] = n
	}
	for _, a := range c.GoneAddrs {
		delete(r.addrs, a)
	}
	for _, a := range c.NodeAddrs {
		r.addrs[a] = true
	}
}

// done returns the table after the changes.
func (r *replayed) done() cluster.Table {
	byName := func(a, b cluster.Node) int { return strings.Compare(a.Name, b.Name) }
	t := r.table
	t.Peers = slices.SortedFunc(maps.Values(r.peers), byName)
	t.Keyless = slices.SortedFunc(maps.Values(r.keyless), byName)
	t.NodeAddrs = slices.SortedFunc(maps.Keys(r.addrs), netip.Addr.Compare)
	return t
}
