package simulator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/scale/apiwrite"
	"github.com/kubeveil/kubeveil/e2e/scale/servicenode"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/telemetry/admin"
)

// Parts.
const (
	partCold, partChurn, partDelete, partCut = "cold", "churn", "delete", "cut"
	partKill, partRestart, partBad           = "kill", "restart", "bad"
)

// Suffixes of cases: the time until kernel = source, the same after the objects came back, and the
// CPU time of the idle node.
const suffixEqual, suffixBack, suffixIdle = "_equal", "_back", "_idle"

// caseChurning is the CPU time of veild during part churn.
const caseChurning = partChurn + "_processor"

// titles describe the scenarios.
var titles = map[string]string{
	partCold:    "cold start",
	partChurn:   "1 % of nodes per hour, 50 endpoints per second",
	partDelete:  "half of the nodes and all slices deleted, and back",
	partCut:     "the same while cut off, with relists after compaction",
	partKill:    "killed at a quarter, half and three quarters of the lists",
	partRestart: "API server restarted during the lists",
	partBad:     "one VeilNode cannot be read",
}

// cold starts the programs of the node.
func (s *run) cold(ctx context.Context) error {
	if err := s.fill(ctx); err != nil {
		return err
	}
	began := time.Now()
	if err := s.start(ctx); err != nil {
		return err
	}
	return s.ends(ctx, partCold, began)
}

// start starts the programs for the first time, and waits until the node has everything.
func (s *run) start(ctx context.Context) error {
	if s.started {
		return nil
	}
	s.started = true
	if err := s.fill(ctx); err != nil {
		return err
	}
	for _, name := range []string{"veil-wg", "veild"} {
		if _, err := s.node.StartProgram(ctx, name); err != nil {
			return err
		}
	}
	if err := s.equal(ctx); err != nil {
		return err
	}
	var err error
	s.listed, err = s.read()
	return err
}

// churn replaces nodes and changes endpoints for the time of the options.
func (s *run) churn(ctx context.Context) error {
	if err := s.start(ctx); err != nil {
		return err
	}
	const endpoints = 50                                   // per second
	each := time.Hour / time.Duration(max(1, s.Nodes/100)) // 1 % per hour
	rng := rand.New(rand.NewPCG(1, 2))
	before, err := s.processor("veild", "veil-wg")
	if err != nil {
		return err
	}
	began, nodes := time.Now(), 0
	for i := 0; time.Since(began) < s.Churn; i++ {
		if err := pause(ctx, time.Until(began.Add(time.Duration(i)*time.Second/endpoints))); err != nil {
			return err
		}
		if err := s.moveEndpoint(ctx, rng.IntN(s.shape.Services()), i); err != nil {
			return err
		}
		if time.Since(began) < time.Duration(nodes)*each {
			continue
		}
		nodes++
		n := rng.IntN(s.Nodes)
		if err := errors.Join(s.deleteNodes(ctx, n, n+1), s.createNodes(ctx, n, n+1)); err != nil {
			return err
		}
	}

	ended := time.Now()
	after, err := s.processor("veild", "veil-wg")
	if err != nil {
		return err
	}
	s.Add(caseChurning, titles[partChurn]+": CPU of veild and veil-wg, of a core", bench.Percent,
		100*(after-before).Seconds()/max(ended.Sub(began).Seconds(), 1))
	return s.ends(ctx, partChurn, ended)
}

// delete deletes half of the nodes and all slices, and creates them again.
func (s *run) delete(ctx context.Context) error {
	return s.away(ctx, partDelete, func(change func() error) error { return change() })
}

// cut does the same while the node cannot reach the API server.
func (s *run) cut(ctx context.Context) error {
	c := s.lab.Control
	return s.away(ctx, partCut, func(change func() error) error {
		if err := c.RefuseNodes(ctx, true); err != nil {
			return err
		}
		// A new API server has no history of its own, and etcd has none before the present.
		return errors.Join(change(), c.CompactEtcd(ctx), c.StopAPIServer(ctx),
			c.StartAPIServer(ctx), c.RefuseNodes(ctx, false))
	})
}

// away deletes half of the nodes and all slices, and creates them again, each as while does it.
func (s *run) away(ctx context.Context, part string, while func(change func() error) error) error {
	if err := s.start(ctx); err != nil {
		return err
	}
	half := s.Nodes / 2
	err := while(func() error {
		return errors.Join(s.deleteNodes(ctx, 0, half), s.deleteSlices(ctx))
	})
	if err != nil {
		return err
	}
	ended := time.Now()
	if err := s.equal(ctx); err != nil {
		return fmt.Errorf("after the deletion: %w", err)
	}
	s.Add(part+suffixEqual, titles[part]+": deleted", bench.Millisecond, since(ended))

	err = while(func() error {
		return errors.Join(s.createNodes(ctx, 0, half), s.createSlices(ctx))
	})
	if err != nil {
		return err
	}
	ended = time.Now()
	if err := s.equal(ctx); err != nil {
		return fmt.Errorf("after they are back: %w", err)
	}
	s.Add(part+suffixBack, titles[part]+": back", bench.Millisecond, since(ended))
	return s.idle(ctx, part)
}

// kill kills veild at quarters of its lists. Meanwhile the maps have what they had.
func (s *run) kill(ctx context.Context) error {
	if err := s.start(ctx); err != nil {
		return err
	}
	for quarters := range int64(3) {
		if err := s.node.Program("veild").Kill(ctx); err != nil {
			return err
		}
		before, err := servicenode.Read(s.node.Path(abi.BPFDir))
		if err != nil {
			return err
		}
		for i := range min(100, s.shape.Services()) {
			if err := s.moveEndpoint(ctx, i, int(quarters+1)*1000+i); err != nil {
				return err
			}
		}

		if err := s.startAgain(ctx, quarters+1); err != nil {
			return err
		}
		if err := s.node.Program("veild").Kill(ctx); err != nil {
			return err
		}
		after, err := servicenode.Read(s.node.Path(abi.BPFDir))
		if err != nil {
			return err
		}
		if how := after.Differs(before); how != "" {
			return fmt.Errorf("killed after %d quarters of its lists: %s", quarters+1, how)
		}
	}

	began := time.Now()
	if _, err := s.node.StartProgram(ctx, "veild"); err != nil {
		return err
	}
	return s.ends(ctx, partKill, began)
}

// startAgain starts veild and waits until it has read some quarters of what it lists.
func (s *run) startAgain(ctx context.Context, quarters int64) error {
	p, err := s.node.StartProgram(ctx, "veild")
	if err != nil {
		return err
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		if n, err := s.read(); err != nil || n >= s.listed*quarters/4 {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if !p.Running() {
			return fmt.Errorf("veild has ended: %w: %s", p.Ended(), p.Tail())
		}
	}
}

// restart restarts the API server while veild lists.
func (s *run) restart(ctx context.Context) error {
	if err := s.start(ctx); err != nil {
		return err
	}
	if err := s.node.Program("veild").Kill(ctx); err != nil {
		return err
	}
	if err := s.startAgain(ctx, 2); err != nil {
		return err
	}
	c := s.lab.Control
	if err := errors.Join(c.StopAPIServer(ctx), c.StartAPIServer(ctx)); err != nil {
		return err
	}
	return s.ends(ctx, partRestart, time.Now())
}

// bad adds a node whose VeilNode has a malformed endpoint, which the schema of VeilNodes allows.
// veild lists it too, and reports it.
func (s *run) bad(ctx context.Context) error {
	if err := s.start(ctx); err != nil {
		return err
	}
	n := nodeOf(s.Nodes)
	if err := apiwrite.SendAll(ctx, s.writer, []*corev1.Node{kubeNode(n)}); err != nil {
		return err
	}
	claim, err := veilNode(n, "")
	if err != nil {
		return err
	}
	claim.SetOwnerReferences(nil)
	err = unstructured.SetNestedStringSlice(claim.Object, []string{"198.18.999.1:51820"}, "spec",
		"endpoints")
	if err != nil {
		return err
	}
	if err := apiwrite.SendAll(ctx, s.writer, []*unstructured.Unstructured{claim}); err != nil {
		return err
	}

	if err := s.node.Program("veild").Kill(ctx); err != nil {
		return err
	}
	began := time.Now()
	if _, err := s.node.StartProgram(ctx, "veild"); err != nil {
		return err
	}
	if err := s.ends(ctx, partBad, began, n.Name); err != nil {
		return err
	}
	status, err := admin.Fetch(ctx, s.node.Path(abi.AdminSocket))
	if err != nil {
		return err
	}
	if !strings.Contains(strings.Join(status.Problems, "\n"), n.Name) {
		return fmt.Errorf("no problem names %s: %q", n.Name, status.Problems)
	}
	return s.deleteNodes(ctx, s.Nodes, s.Nodes+1)
}

// equalWithin bounds the wait until kernel = source.
const equalWithin = 3 * time.Minute

// equal waits until the kernel has what the API server has, but for the nodes in except.
func (s *run) equal(ctx context.Context, except ...string) error {
	return s.equalAt(ctx, s.node, except...)
}

// equalAt is equal for a node.
func (s *run) equalAt(ctx context.Context, node *lab.Node, except ...string) error {
	want, err := s.source(ctx, node, except...)
	if err != nil {
		return err
	}
	return lab.Until(ctx, equalWithin, func() error {
		if p := node.Program("veild"); !p.Running() {
			return lab.Stop(fmt.Errorf("veild has ended: %w: %s", p.Ended(), p.Tail()))
		}
		got, err := kernel(ctx, node)
		if err != nil {
			return err
		}
		if how := got.differs(want); how != "" {
			return errors.New(how)
		}
		return nil
	})
}

// ends ends a scenario: it adds the time from its last change until kernel = source, and the CPU
// time of the idle node.
func (s *run) ends(ctx context.Context, part string, last time.Time, except ...string) error {
	if err := s.equal(ctx, except...); err != nil {
		return err
	}
	s.Add(part+suffixEqual, titles[part]+": until kernel = source", bench.Millisecond, since(last))
	s.Progress("%s: equal after %.1f s", titles[part], time.Since(last).Seconds())
	return s.idle(ctx, part)
}

// idle adds the CPU time of the node while nothing changes.
func (s *run) idle(ctx context.Context, part string) error {
	if err := pause(ctx, s.Settle); err != nil {
		return err
	}
	before, err := s.processor("veild", "veil-wg")
	if err != nil {
		return err
	}
	began := time.Now()
	if err := pause(ctx, s.Idle); err != nil {
		return err
	}
	after, err := s.processor("veild", "veil-wg")
	if err != nil {
		return err
	}
	share := 100 * (after - before).Seconds() / time.Since(began).Seconds()
	s.Add(part+suffixIdle, titles[part]+": idle afterwards, of a core", bench.Percent, share)
	s.Progress("%s: idle at %.2f %% of a core", titles[part], share)
	return nil
}

// read returns the number of bytes that veild has read since its start (proc_pid_io(5)).
func (s *run) read() (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", s.node.Program("veild").PID()))
	if err != nil {
		return 0, err
	}
	first, _, _ := bytes.Cut(text, []byte("\n"))
	return strconv.ParseInt(strings.TrimPrefix(string(first), "rchar: "), 10, 64)
}

func since(t time.Time) float64 { return bench.Millis(time.Since(t)) }

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
