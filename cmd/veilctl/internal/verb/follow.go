package verb

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
)

const (
	// followedNodes bounds the nodes that are followed at once, because each needs a connection to
	// the API server.
	followedNodes = 100
	// lineLimit bounds the bytes of one line of another node. A longer line is split.
	lineLimit = 64 << 10
	// withStdin is a hidden flag that makes a verb end at the end of its standard input. Without
	// it, a command in a pod would continue after its caller has ended.
	withStdin = "until-stdin-ends"
)

// follow prints the lines of nodes as they arrive, each with the name of its node, until the call
// is interrupted. It returns ErrWrong if veilctl ends on all nodes before.
func (f fleet) follow(c Call, nodes []string) error {
	if len(nodes) > followedNodes {
		return fmt.Errorf("--follow is for at most %d nodes, and the cluster has %d: write --node "+
			"NAME: %w", followedNodes, len(nodes), ErrUsage)
	}

	var mu sync.Mutex
	out, progress := &shared{mu: &mu, to: c.Out}, &shared{mu: &mu, to: c.Progress}
	var g errgroup.Group
	for _, node := range nodes {
		g.Go(func() error {
			why := "no pod of veild on this node"
			if pod := f.pods[node]; pod != "" {
				why = "it ended"
				lines := &nodeLines{out: out, node: node, json: f.json}
				if err := f.stream(c.Ctx, lines, pod, f.args...); err != nil {
					why = printable(err.Error())
				}
			}
			if c.Ctx.Err() == nil {
				fmt.Fprintf(progress, "%s: %s\n", node, why)
			}
			return nil
		})
	}
	_ = g.Wait() // no node returns an error
	if c.Ctx.Err() != nil {
		return nil
	}
	return ErrWrong
}

// untilEnd returns a context that ends at the end of in, or with ctx. A goroutine reads and
// discards in until its end.
func untilEnd(ctx context.Context, in io.Reader) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, in) // an error counts as the end
		cancel()
	}()
	return ctx
}

// shared is a writer that locks mu during each Write. Several writers can share mu.
type shared struct {
	mu *sync.Mutex
	to io.Writer
}

func (s *shared) Write(text []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.to.Write(text)
}

// nodeLines is a writer that adds the name of a node to each line, and passes the line to out in
// one Write. It keeps an incomplete line until its end is written.
type nodeLines struct {
	out  io.Writer
	node string
	json bool
	rest []byte
}

func (l *nodeLines) Write(text []byte) (int, error) {
	l.rest = append(l.rest, text...)
	for {
		line, rest, ended := bytes.Cut(l.rest, []byte("\n"))
		if !ended && len(line) <= lineLimit {
			return len(text), nil
		}
		l.rest = rest
		if _, err := io.WriteString(l.out, l.named(line)+"\n"); err != nil {
			return 0, err
		}
	}
}

// named returns a line with the name of the node: as the first field of a JSON object, or before
// the text.
func (l *nodeLines) named(line []byte) string {
	text := strings.TrimRight(printable(string(line)), " ")
	if !l.json {
		return l.node + "  " + text
	}

	name, _ := json.Marshal(l.node) // encoding a string as JSON never fails
	object := `{"node":` + string(name)
	var fields map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &fields); err != nil {
		return object + `,"error":"its answer is not JSON"}`
	}
	if len(fields) > 0 {
		object += ","
	}
	_, rest, _ := strings.Cut(text, "{")
	return object + rest
}
