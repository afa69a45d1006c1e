package scale

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/scale/apifeed"
	"github.com/kubeveil/kubeveil/e2e/scale/apiwrite"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/load"
)

// lineFollows is the line that a child prints when its table has what the API server has.
const lineFollows = "follows"

// write measures endpoints of all sizes from the first request of a writer to the last frontend in
// the table, and beside it the writer alone.
func (s *run) write(ctx context.Context) error {
	p, err := s.plane(ctx)
	if err != nil {
		return err
	}

	for _, n := range s.Sizes {
		requests, err := slicesOf(shapeOf(kindTCP, n))
		if err != nil {
			return err
		}
		name := caseOf(partWrite, n)
		what := fmt.Sprintf("%d endpoints written to a real API server, watched and programmed", n)
		s.labelCase(name, what)
		s.labelCase(name+toAlone, what)
		err = s.Interleave(ctx, []bench.Group{{Name: name, Unit: bench.Millisecond, Extras: extras,
			Pairs: []bench.Pair{{Name: name + toAlone, Ours: sideFollow, Base: sideAlone},
				{Name: name, Ours: sideFollow}},
			Sides: []bench.Side{
				{Name: sideFollow, Measure: func(ctx context.Context) (bench.Sample, error) {
					return p.measureWrite(ctx, requests, n, true)
				}},
				{Name: sideAlone, Measure: func(ctx context.Context) (bench.Sample, error) {
					return p.measureWrite(ctx, requests, n, false)
				}}}}})
		if err != nil {
			return fmt.Errorf("%d endpoints: %w", n, err)
		}
	}
	return nil
}

// measureWrite writes slices once, and deletes them afterwards. If followed is set, a node's process
// watches and programs them meanwhile.
func (p *plane) measureWrite(ctx context.Context, requests []apiwrite.Request, n int,
	followed bool) (_ bench.Sample, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, sideLimit, errors.New("it did not end"))
	defer cancel()
	var node *lab.Process
	if followed {
		argv := p.argv(sideFollow, n, strconv.Itoa(p.services))
		if node, err = p.lab.Control.Host().Start(ctx, argv[0], argv[1:]...); err != nil {
			return bench.Sample{}, err
		}
		defer func() { err = errors.Join(err, node.Kill(context.WithoutCancel(ctx))) }()
		if err := node.WaitLine(ctx, lineFollows, sideLimit); err != nil {
			return bench.Sample{}, err
		}
	}
	defer func() { err = errors.Join(err, p.clear(ctx)) }()

	spent, err := p.spent()
	if err != nil {
		return bench.Sample{}, err
	}
	began, before := time.Now(), load.OwnCPU()
	if err := p.writer.Send(ctx, requests); err != nil {
		return bench.Sample{}, err
	}
	f := figures{Written: bench.Millis(time.Since(began)),
		Writer: bench.Millis(load.OwnCPU() - before)}
	f.Wall = f.Written
	if followed {
		var got figures
		if err := errors.Join(node.Wait(ctx), node.Result(ctx, &got)); err != nil {
			return bench.Sample{}, err
		}
		f.Wall, f.Processor = bench.Millis(got.Last.Sub(began)), got.Processor
	}
	err = spent(&f)
	return f.sample(), err
}

// follow runs a node, prints lineFollows when its table has some services without endpoints, and
// returns when the table has the endpoints of a shape besides.
func follow(ctx context.Context, services int, shape apifeed.Shape, config string,
	out io.Writer) (f figures, err error) {
	w := want{services, 0}.beside()
	node, err := openNode(config, w.frontends)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, node.Close()) }()
	ctx, end := context.WithCancel(ctx)
	var ended sync.WaitGroup
	defer ended.Wait()
	defer end()
	ended.Go(func() { node.Run(ctx) })
	if _, err := node.writes.wait(ctx); err != nil {
		return f, err
	}

	node.writes.expect(shape.Services())
	before := load.OwnCPU()
	if _, err := fmt.Fprintln(out, lineFollows); err != nil {
		return f, err
	}
	if f.Last, err = node.writes.wait(ctx); err != nil {
		return f, err
	}
	f.Processor = bench.Millis(load.OwnCPU() - before)
	w.endpoints += shape.Endpoints
	return f, errors.Join(node.Problems(ctx), complete(node.dir(), w))
}
