package source

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/kubeveil/kubeveil/pkg/cluster"
)

// encoder encodes successive tables. It encodes only peers that did not have the same content in
// the last table, and copies the text of the others. This is fast, because usually one peer of many
// changes at a time. The zero value is ready for use.
type encoder struct {
	peers cluster.Memo[[]byte]
	// text is the last text. spare is the text before that. The next text reuses its memory.
	text, spare []byte
}

// noPeers and noAddrs are the texts of the peers and node addresses of a table without them. They
// cannot occur within a JSON string, because quotes are escaped there.
var (
	noPeers = []byte(`"peers":[]`)
	noAddrs = []byte(`"nodeAddrs":[]`)
)

// encode returns the same text as Encode, but with [] for nil peers. Peers are sorted by name. The
// caller may use the text until the second call after this one.
func (e *encoder) encode(t cluster.Table) ([]byte, error) {
	rest := t
	rest.Peers = []cluster.Node{}
	if t.NodeAddrs != nil {
		rest.NodeAddrs = []netip.Addr{}
	}
	frame, err := Encode(rest)
	if err != nil {
		return nil, err
	}
	before, frame, hasPeers := bytes.Cut(frame, noPeers)
	between, after, hasAddrs := bytes.Cut(frame, noAddrs)
	if !hasPeers || hasAddrs != (t.NodeAddrs != nil) {
		return nil, fmt.Errorf("encode snapshot: no place for peers and addresses in %q", frame)
	}

	text := append(append(e.spare[:0], before...), noPeers[:len(noPeers)-1]...)
	if text, err = e.appendPeers(text, t.Peers); err != nil {
		return nil, err
	}
	text = append(append(text, ']'), between...)
	if hasAddrs {
		text = appendAddrs(append(text, noAddrs[:len(noAddrs)-1]...), t.NodeAddrs)
		text = append(append(text, ']'), after...)
	}
	e.text, e.spare = text, e.text
	return text, nil
}

func (e *encoder) appendPeers(text []byte, peers []cluster.Node) ([]byte, error) {
	var failed error
	differs := func(a, b []byte) bool { return false }
	encode := func(n cluster.Node) []byte {
		b, err := json.Marshal(n)
		if err != nil {
			failed = fmt.Errorf("encode snapshot: node %s: %w", n.Name, err)
		}
		return b
	}
	for i, b := range e.peers.Map(cluster.NewDelta(nil, peers), differs, encode) {
		if i > 0 {
			text = append(text, ',')
		}
		text = append(text, b...)
	}
	if failed != nil {
		e.peers.Forget()
	}
	return text, failed
}

func appendAddrs(text []byte, addrs []netip.Addr) []byte {
	for i, a := range addrs {
		if i > 0 {
			text = append(text, ',')
		}
		if a.Zone() != "" { // it may need escapes
			b, _ := json.Marshal(a)
			text = append(text, b...)
			continue
		}
		text = append(a.AppendTo(append(text, '"')), '"')
	}
	return text
}
