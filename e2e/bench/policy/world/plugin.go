package world

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/pod/podtest"
	"github.com/kubeveil/kubeveil/pkg/policy"
)

// Newcomers is the number of pods that the plugin attaches in turn.
const Newcomers = 8

// Newcomer returns pod k of the newcomers. It is on this node, and policies select it. pods is the
// number of the node's other pods.
func Newcomer(pods, k int) policy.Pod {
	p := PodOf(0, pods+10+k, k)
	p.Labels["app"] = fmt.Sprintf("app-%d", k)
	return p
}

// Names of the operations that a Plugin times.
const (
	TimedAdd   = "_add"
	TimedDel   = "_del"
	TimedOther = "_transaction"
)

// Plugin attaches and detaches newcomers on a node as the CNI plugin does.
type Plugin struct {
	node, inner *Space // inner is the network namespace of the pods
	pods        int
	paths       pod.Paths
}

// NewPlugin returns the Plugin of a node with a number of other pods, whose records are in dir.
func NewPlugin(node *Space, dir string, pods int) (*Plugin, error) {
	inner, err := NewSpace()
	if err != nil {
		return nil, err
	}
	p := &Plugin{node: node, inner: inner, pods: pods, paths: pod.Paths{
		PodDir: filepath.Join(dir, "pods"), PolicyDir: filepath.Join(dir, "policy"),
		ReadyFile: filepath.Join(dir, "ready")}}
	err = node.Do(func() error {
		return errors.Join(podtest.Guard(), podtest.Mark(p.paths.ReadyFile))
	})
	if err != nil {
		return nil, errors.Join(err, inner.Close())
	}
	return p, nil
}

// Close removes the namespace of the pods.
func (p *Plugin) Close() error { return p.inner.Close() }

// Beside takes turns while fn runs, and at least least turns. It returns the milliseconds of each
// operation, keyed by TimedAdd, TimedDel and TimedOther.
func (p *Plugin) Beside(ctx context.Context, least int,
	fn func() error) (took map[string][]float64, err error) {
	ended := make(chan error, 1)
	go func() { ended <- fn() }()
	took = map[string][]float64{}
	for k, running := 0, true; running || k < least; k++ {
		err := p.node.Do(func() error { return p.turn(k%Newcomers, took) })
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil && running {
			err = errors.Join(err, <-ended)
		}
		if err != nil {
			return nil, err
		}
		select {
		case err := <-ended:
			if running = false; err != nil {
				return nil, err
			}
		default:
		}
	}
	return took, nil
}

// turn attaches newcomer k, writes another small nftables table, and detaches the newcomer. It adds
// the times of these operations to took. It must run on a thread in the node's namespace.
func (p *Plugin) turn(k int, took map[string][]float64) error {
	timed := func(what string, fn func() error) error {
		began := time.Now()
		err := fn()
		took[what] = append(took[what], bench.Millis(time.Since(began)))
		return err
	}

	who := Newcomer(p.pods, k)
	r := RecordOf(who, p.pods+10+k)
	r.Netns = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), p.inner.Fd())
	err := timed(TimedAdd, func() error {
		var undo pod.Undo
		err := p.paths.Attach(r, p.inner.Fd(), &undo)
		if err != nil {
			err = errors.Join(err, undo.Run())
		}
		return err
	})
	if err != nil {
		return err
	}
	other := timed(TimedOther, func() error { return (&nft.Table{Name: "other"}).Replace() })
	return errors.Join(other, timed(TimedDel, func() error { return p.paths.Detach(r.HostLink) }))
}
