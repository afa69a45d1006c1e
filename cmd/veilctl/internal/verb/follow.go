package verb

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kubeveil/kubeveil/pkg/remote"
)

const (
	// followedNodes bounds the nodes that are followed at once, because each needs a connection to
	// the API server.
	followedNodes = 100
	// lineLimit bounds the bytes of one line of another node. A longer line is split.
	lineLimit = 64 << 10
	// resumeEvery is the pause before veilctl runs again on a node where it ended, and resumeFor
	// how long a node is tried again without a line from it. A rolling update replaces veild within
	// it.
	resumeEvery, resumeFor = 2 * time.Second, 2 * time.Minute
	// withStdin is a hidden flag that makes a verb end at the end of its standard input. Without
	// it, a command in a pod would continue after its caller has ended.
	withStdin = "until-stdin-ends"
)

// follow prints the lines of nodes as they arrive, each with the name of its node, until the call
// is interrupted. It returns ErrWrong if it can follow no node any more.
func (f fleet) follow(c Call, nodes []string) error {
	if len(nodes) > followedNodes {
		return fmt.Errorf("--follow is for at most %d nodes, and the cluster has %d: write --node "+
			"NAME: %w", followedNodes, len(nodes), ErrUsage)
	}

	var mu sync.Mutex
	out, progress := &shared{mu: &mu, to: c.Out}, &shared{mu: &mu, to: c.Progress}
	find := (&podFinder{list: f.find}).pods
	var elsewhere atomic.Pointer[remote.CommandError]
	var others atomic.Bool
	var g errgroup.Group
	for _, node := range nodes {
		n := followed{fleet: f, node: node, find: find,
			lines: &nodeLines{out: out, node: node, json: f.json}}
		n.report = func(why string) {
			if f.json {
				_ = json.NewEncoder(out).Encode(nodeAnswer{Node: node, Error: why})
			}
			fmt.Fprintf(progress, "%s: %s\n", node, why)
		}
		g.Go(func() error {
			if refused := n.follow(c.Ctx, f.pods[node]); refused != nil &&
				refused.Status == ExitNotHere {
				elsewhere.Store(refused)
			} else {
				others.Store(true)
			}
			return nil
		})
	}
	_ = g.Wait() // no node returns an error
	refused := elsewhere.Load()
	switch {
	case c.Ctx.Err() != nil:
		return nil
	case refused != nil && !others.Load():
		return nowhere(strings.TrimPrefix(refused.Stderr, "veilctl: "))
	}
	return ErrWrong
}

// followed is a node whose lines are printed.
type followed struct {
	fleet
	node  string
	lines *nodeLines
	// find returns the present pods of veild by node. report prints why no lines arrive.
	find   func(context.Context) (map[string]string, error)
	report func(why string)
}

// follow runs veilctl in the node's pod of veild. When veilctl ends, because veild was replaced or
// the connection was lost, follow runs it again in the present pod. It gives up after resumeFor
// without a line, or if veilctl refuses the command line, and then returns that error.
func (n followed) follow(ctx context.Context, pod string) (refused *remote.CommandError) {
	last, reported := time.Now(), ""
	for args := n.args; ; args = n.argsSince(last) {
		why, wrote := "no pod of veild on this node", n.lines.bytes
		if refused = nil; pod != "" {
			why = "veilctl ended"
			if err := n.stream(ctx, n.lines, pod, args...); err != nil {
				why = strings.ReplaceAll(err.Error(), "\n", "; ")
				errors.As(err, &refused)
			}
		}

		n.lines.rest = nil
		if n.lines.bytes > wrote {
			last, reported = time.Now(), ""
		}
		switch {
		case ctx.Err() != nil || refused != nil && refused.Status == ExitNotHere:
			return refused
		case why != reported:
			n.report(why)
			reported = why
		}
		if time.Since(last) > resumeFor || refused != nil &&
			(refused.Status == ExitWrong || refused.Status == ExitUsage) {
			return refused
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(resumeEvery):
		}
		if pods, err := n.find(ctx); err == nil {
			pod = pods[n.node]
		}
	}
}

// argsSince returns the command line for lines that are newer than the last one, which arrived at
// that time. Before the first line, it is the user's command line.
func (n followed) argsSince(last time.Time) []string {
	if !n.since || n.lines.bytes == 0 {
		return n.args
	}
	gap := (time.Since(last) + time.Second).Truncate(time.Millisecond)
	return append(slices.Clone(n.args), "--since="+gap.String())
}

// podFinder lists pods at most once per resumeEvery, for all nodes.
type podFinder struct {
	list func(context.Context) (map[string]string, error)

	mu    sync.Mutex // guards the fields below
	at    time.Time
	found map[string]string
	err   error
}

func (p *podFinder) pods(ctx context.Context) (map[string]string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); now.Sub(p.at) >= resumeEvery {
		p.found, p.err = p.list(ctx)
		p.at = now
	}
	return p.found, p.err
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
	// bytes counts what was written.
	bytes int
}

func (l *nodeLines) Write(text []byte) (int, error) {
	l.rest, l.bytes = append(l.rest, text...), l.bytes+len(text)
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

// named returns a line with the name of the node: as the first field of a JSON object, instead of
// its own field node, or before the text.
func (l *nodeLines) named(line []byte) string {
	if !l.json {
		return l.node + "  " + strings.TrimRight(remote.Printable(string(line)), " ")
	}

	name, _ := json.Marshal(l.node) // encoding a string as JSON never fails
	object := `{"node":` + string(name)
	var fields map[string]json.RawMessage
	err := json.Unmarshal([]byte(remote.PrintableJSON(string(line))), &fields)
	if err != nil || fields == nil {
		return object + `,"error":"its answer is not JSON"}`
	}
	// The node must not answer for another one. Go reads names of fields in any case.
	maps.DeleteFunc(fields, func(field string, _ json.RawMessage) bool {
		return strings.EqualFold(field, "node")
	})
	rest, err := json.Marshal(fields)
	if err != nil {
		return object + `,"error":"its answer is not JSON"}`
	}
	if len(fields) > 0 {
		object += ","
	}
	return object + string(rest[1:])
}
