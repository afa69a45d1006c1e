package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/policy/fastpath"
	"github.com/kubeveil/kubeveil/e2e/bench/policy/world"
	"github.com/kubeveil/kubeveil/internal/poll"
	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/policy/keeper"
)

// node is a node with a running Keeper.
type node struct {
	*keeper.Keeper
	*world.Space
	world.Cluster
	dir string
	// programmed receives the time at which each step of the Keeper was in force.
	programmed chan time.Time
	stop       context.CancelFunc
	ended      chan error
	// undo removes what newFastNode has made in addition.
	undo pod.Undo
	// moves counts the pods that moved from one set of peers to another.
	moves int
}

// Folders of nodes are in memory, because veild's records and reservations are in memory too
// (/run).
const memory, folderPrefix = "/dev/shm", "kubeveil-bench-policy-"

// changeLimit bounds the wait until a change is in force.
const changeLimit = time.Minute

// newNode returns a node whose pods have records. The caller adds objects, calls listed, and closes
// the node.
func newNode(c world.Cluster) (*node, error) { return newNodeWith(c, nil) }

// newFastNode is newNode for a node whose pods also have links, and the fast path unless a policy
// selects them.
func newFastNode(c world.Cluster) (n *node, f *fastpath.FastPath, err error) {
	n, err = newNodeWith(c, func(n *node) (keeper.FastPath, error) {
		f, err = fastpath.Open(n.Pods, &n.undo)
		return f, err
	})
	return n, f, err
}

// newNodeWith is newNode with a fast path. It calls open in the node's namespace to make the fast
// path. A nil open means that the node has no fast path.
func newNodeWith(c world.Cluster, open func(*node) (keeper.FastPath, error)) (*node, error) {
	s, err := world.NewSpace()
	if err != nil {
		return nil, err
	}
	n := &node{Space: s, Cluster: c, programmed: make(chan time.Time, 64),
		ended: make(chan error, 1), stop: func() {}}
	if n.dir, err = os.MkdirTemp(memory, folderPrefix); err != nil {
		return nil, errors.Join(err, s.Close())
	}

	paths := pod.Paths{PodDir: filepath.Join(n.dir, "pods"), PolicyDir: filepath.Join(n.dir, "policy")}
	err = errors.Join(os.Mkdir(paths.PodDir, 0o700), paths.OpenPolicy())
	for i := range c.Pods {
		err = errors.Join(err, world.WriteRecord(paths.PodDir,
			world.RecordOf(world.PodOf(0, i, 0), i)))
	}
	o := keeper.PolicyConfig{Node: world.Here, Paths: paths, Log: slog.New(slog.DiscardHandler),
		Programmed: func(time.Duration) { n.programmed <- time.Now() }}
	if open != nil {
		err = errors.Join(err, s.Do(func() (err error) {
			o.FastPath, err = open(n)
			return err
		}))
	}
	n.Keeper = keeper.New(o)
	if err = errors.Join(err, s.Do(n.Begin)); err != nil {
		n.ended <- nil
		return nil, errors.Join(err, n.close())
	}

	ctx, stop := context.WithCancel(context.Background())
	n.stop = stop
	go func() {
		n.ended <- s.Do(func() error { return n.Run(ctx) })
	}()
	return n, nil
}

// listed marks the Keeper's objects as complete, and waits until all policies are in force.
func (n *node) listed(ctx context.Context) error {
	n.SetPrefixes(n.Prefixes())
	if _, err := n.change(ctx, n.Listed); err != nil {
		return err
	}
	// The Keeper's status follows after a step is in force.
	return await(ctx, time.Millisecond, func() error {
		s, problems := n.Status(), n.Problems()
		if s.Members == n.Pods && s.Pending == 0 && len(problems) == 0 {
			return nil
		}
		return fmt.Errorf("%d of %d pods are in policy groups, problems %q", s.Members, n.Pods,
			problems)
	})
}

// await calls lacks at each interval until it returns nil, for at most changeLimit. The error wraps
// the last error of lacks.
func await(ctx context.Context, interval time.Duration, lacks func() error) error {
	ctx, cancel := context.WithTimeout(ctx, changeLimit)
	defer cancel()
	return poll.Until(ctx, interval, interval, lacks)
}

// change calls tell, which passes a change to the Keeper, and returns the time until the change is
// in force.
func (n *node) change(ctx context.Context, tell func()) (time.Duration, error) {
	began := time.Now()
	tell()
	return n.inForce(ctx, began)
}

// inForce waits until the last change is in force, and returns the time from began until then.
func (n *node) inForce(ctx context.Context, began time.Time) (time.Duration, error) {
	limit := time.NewTimer(changeLimit)
	defer limit.Stop()
	select {
	case at := <-n.programmed:
		return at.Sub(began), nil
	case <-limit.C:
		return 0, fmt.Errorf("a change is not in force after %v: %q", changeLimit, n.Problems())
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// close ends the Keeper and removes everything of the node.
func (n *node) close() error {
	n.stop()
	return errors.Join(<-n.ended, n.Keeper.Close(), n.undo.Run(), n.Space.Close(),
		os.RemoveAll(n.dir))
}
