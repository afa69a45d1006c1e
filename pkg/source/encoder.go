package source

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/cluster"
)

// encoder encodes successive tables. For a peer that did not change since the last table, it copies
// the text of that table. This is fast, because usually one peer of many changes at a time. The
// zero value is ready for use.
type encoder struct {
	// text is the text of the last table. peers are its peers, sorted by name. spans[i] is the
	// place of peers[i] in text.
	text  []byte
	peers []cluster.Node
	spans []span
	// spare is the text before that. The next text reuses its memory.
	spare []byte
}

type span struct{ from, to int }

// noPeers is the text of the peers of a table without peers. It cannot occur within a JSON string,
// because quotes are escaped there.
var noPeers = []byte(`"peers":[]`)

// encode returns the same text as Encode, but with [] for nil peers. The caller may use the text
// until the second call after this one.
func (e *encoder) encode(t cluster.Table) ([]byte, error) {
	rest := t
	rest.Peers = []cluster.Node{}
	frame, err := Encode(rest)
	if err != nil {
		return nil, err
	}
	at := bytes.Index(frame, noPeers)
	if at < 0 {
		return nil, fmt.Errorf("encode snapshot: no place for peers in %q", frame)
	}
	at += len(noPeers) - 1

	text := append(e.spare[:0], frame[:at]...)
	spans := make([]span, 0, len(t.Peers))
	for i, n := range t.Peers {
		if i > 0 {
			text = append(text, ',')
		}
		from := len(text)
		if text, err = e.appendNode(text, n); err != nil {
			return nil, err
		}
		spans = append(spans, span{from, len(text)})
	}
	text = append(text, frame[at:]...)
	e.text, e.spare, e.peers, e.spans = text, e.text, t.Peers, spans
	return text, nil
}

func (e *encoder) appendNode(text []byte, n cluster.Node) ([]byte, error) {
	i, known := slices.BinarySearchFunc(e.peers, n.Name,
		func(p cluster.Node, name string) int { return strings.Compare(p.Name, name) })
	if known && e.peers[i].Equal(n) {
		return append(text, e.text[e.spans[i].from:e.spans[i].to]...), nil
	}
	b, err := json.Marshal(n)
	if err != nil {
		return nil, fmt.Errorf("encode snapshot: node %s: %w", n.Name, err)
	}
	return append(text, b...), nil
}
