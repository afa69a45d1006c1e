package site

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/service/endpoint"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/load"
)

// memory measures the resident memory that more connections cost: of veild and veil-wg, or of the
// proxies, on both nodes. The connections of all rounds stay open, because memory that a closed
// connection leaves could serve the next.
func (s *run) memory(ctx context.Context) error {
	var end []func(context.Context) error
	defer func() {
		for _, e := range end {
			_ = e(context.WithoutCancel(ctx)) // the lab's end ends it too
		}
	}()

	g := bench.Group{Name: partMemory, Unit: bench.MiB}
	for _, l := range s.world.lanes {
		if l.name == laneClear {
			continue
		}
		g.Sides = append(g.Sides, bench.Side{Name: l.name,
			Measure: func(ctx context.Context) (bench.Sample, error) {
				before, err := s.world.resident(l)
				if err != nil {
					return bench.Sample{}, err
				}
				argv := s.world.self.Argv("hold", l.at(endpoint.PortEcho).String(),
					fmt.Sprint(s.Held))
				p, err := l.client.Start(ctx, argv[0], argv[1:]...)
				if err != nil {
					return bench.Sample{}, err
				}
				end = append(end, p.Kill)
				if err := p.WaitLine(ctx, holding, time.Minute); err != nil {
					return bench.Sample{}, fmt.Errorf("lane %s: %w", l.name, err)
				}
				after, err := s.world.resident(l)
				return bench.Sample{Value: max(0, after-before)}, err
			}})
		name := partMemory + "_" + l.name
		g.Pairs = append(g.Pairs, bench.Pair{Name: name, Ours: l.name})
		s.Labels[name] = fmt.Sprintf("Memory of %d more connections: %s", s.Held,
			laneTitles[l.name])
	}
	return s.Interleave(ctx, []bench.Group{g})
}

// resident returns the resident memory of the processes that carry a lane's connections, in MiB.
func (w *world) resident(l lane) (float64, error) {
	var pids []int
	for _, p := range w.proxies[l.name] {
		pids = append(pids, p.PID())
	}
	if l.name == laneEngine {
		for _, n := range w.veil.Nodes() {
			for _, name := range []string{"veild", "veil-wg"} {
				all, err := n.Processes(name)
				if err != nil {
					return 0, err
				}
				for _, p := range all {
					pids = append(pids, p.Pid)
				}
			}
		}
	}
	return load.ResidentMiB(pids...)
}

// holding is the line that hold prints when its connections are open.
const holding = "all connections are open"

// hold opens n connections to an echo server, sends a byte over each and waits for its answer, and
// keeps the connections until ctx is done.
func hold(ctx context.Context, to, n string, out io.Writer) error {
	count, err := strconv.Atoi(n)
	if err != nil {
		return err
	}
	for range count {
		c, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, "tcp", to)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
			return err
		}
		if _, err := c.Write([]byte("?")); err != nil {
			return err
		}
		if _, err := c.Read(make([]byte, 1)); err != nil {
			return err
		}
	}
	fmt.Fprintln(out, holding)
	<-ctx.Done()
	return nil
}
