package policy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/policy/keeper"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// waitTurn bounds the duration of one request to a node, so that other nodes get their turn.
const waitTurn = 5 * time.Second

// clusterProgress is the output of policy wait for a cluster; fields are added, never renamed.
type clusterProgress struct {
	// Enforced reports whether all nodes enforce the policies.
	Enforced bool              `json:"enforced"`
	Nodes    []keeper.Progress `json:"nodes"`
}

// clusterWait waits until all nodes enforce the policies of the API server.
type clusterWait struct {
	// pods returns the name of veild's pod on each node that must enforce policies. The name is ""
	// if the node has no such pod.
	pods func(context.Context) (map[string]string, error)
	// ask runs "veilctl policy wait" in a pod with patience as its timeout, and returns its output.
	// If revision is not empty, veild compares this revision before it lists the policies.
	ask func(ctx context.Context, pod string, patience time.Duration, revision string) ([]byte, error)

	mu sync.Mutex // guards what follows
	// answers holds the last answer of each node. Nodes that enforced the policies get no further
	// request.
	answers map[string]keeper.Progress
	// revision is the revision in the last answer of a node that enforces the policies; "" before
	// the first such answer. It comes from a list of the policies in this run, directly or through
	// comparisons.
	revision string
}

func policyWaitCluster(c verb.Call, cluster *remote.Cluster, timeout time.Duration,
	namespace string) error {
	w := clusterWait{
		pods: cluster.VeildPods,
		ask: func(ctx context.Context, pod string, patience time.Duration,
			revision string) ([]byte, error) {
			args := []string{"policy", "wait", "-o", "json", "--timeout", patience.String(),
				"--socket", abi.AdminSocket}
			if revision != "" {
				args = append(args, "--revision", revision)
			}
			if namespace != "" {
				args = append(args, "--namespace", namespace)
			}
			return cluster.ExecVeilctl(ctx, pod, args...)
		},
	}
	r, err := w.run(c.Ctx, timeout)
	if err != nil {
		return err
	}
	return c.Print(r, !r.Enforced, func() error { return showClusterProgress(c.Out, r, timeout) })
}

// run sends requests until all nodes enforce the policies, or until the timeout.
func (w *clusterWait) run(ctx context.Context, timeout time.Duration) (clusterProgress, error) {
	w.answers, w.revision = map[string]keeper.Progress{}, ""
	end := time.Now().Add(timeout)
	bounded, cancel := context.WithDeadline(ctx, end)
	defer cancel()

	var pods map[string]string
	for pause := waitFirst; ; pause = min(2*pause, waitMost) {
		now, err := w.pods(bounded)
		switch {
		case err == nil:
			pods = now
		case pods == nil || bounded.Err() == nil:
			return clusterProgress{}, err
		}

		w.round(bounded, pods, end)
		r := w.report(pods)
		if r.Enforced {
			return r, nil
		}
		select {
		case <-bounded.Done():
			return r, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// round sends one request to each node that has not enforced the policies yet.
func (w *clusterWait) round(ctx context.Context, pods map[string]string, end time.Time) {
	var g errgroup.Group
	g.SetLimit(verb.NodesAtOnce)
	for node, pod := range pods {
		w.mu.Lock()
		done := w.answers[node].Enforced
		w.mu.Unlock()
		if done || ctx.Err() != nil {
			continue
		}
		g.Go(func() error {
			w.put(ctx, w.askNode(ctx, node, pod, end))
			return nil
		})
	}
	_ = g.Wait() // the functions return no errors
}

// askNode returns the answer of one node. The node waits for at most half of the time until end, so
// that its answer arrives before end.
func (w *clusterWait) askNode(ctx context.Context, node, pod string,
	end time.Time) keeper.Progress {
	p := keeper.Progress{Node: node}
	if pod == "" {
		p.Missing = []string{"the node has no pod of veild"}
		return p
	}
	ctx, cancel := context.WithTimeout(ctx, verb.NodeLimit)
	defer cancel()
	patience := max(min(waitTurn, time.Until(end)/2).Truncate(time.Millisecond), time.Millisecond)

	out, err := w.ask(ctx, pod, patience, w.revisionFor(node))
	var said keeper.Progress
	if err == nil {
		err = remote.DecodeAnswer(out, &said)
	}
	if err == nil && !said.Enforced {
		err = errors.New("its answer is not valid")
	}
	if err != nil {
		p.Missing = []string{strings.ReplaceAll(err.Error(), "\n", "; ")}
		return p
	}
	p.Enforced, p.Policies, p.Revision = true, said.Policies, said.Revision
	return p
}

// revisionFor returns the revision that a node compares. "" means that the node lists the policies.
// A node only compares in its first request: it may not enforce the revision, or its veilctl may
// not have the flag --revision.
func (w *clusterWait) revisionFor(node string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, before := w.answers[node]; before {
		return ""
	}
	return w.revision
}

// put records an answer. An answer that the end of ctx interrupted does not replace an earlier one.
func (w *clusterWait) put(ctx context.Context, p keeper.Progress) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, before := w.answers[p.Node]; !before || p.Enforced || ctx.Err() == nil {
		w.answers[p.Node] = p
	}
	if p.Revision != "" {
		w.revision = p.Revision
	}
}

// report returns the answers of the nodes in pods, sorted by name.
func (w *clusterWait) report(pods map[string]string) clusterProgress {
	r := clusterProgress{Enforced: len(pods) > 0, Nodes: []keeper.Progress{}}
	for _, node := range slices.Sorted(maps.Keys(pods)) {
		p, was := w.answers[node]
		if !was {
			p = keeper.Progress{Node: node, Missing: []string{"the time was over before it received a request"}}
		}
		r.Enforced = r.Enforced && p.Enforced
		r.Nodes = append(r.Nodes, p)
	}
	return r
}

func showClusterProgress(w io.Writer, r clusterProgress, timeout time.Duration) error {
	enforcing := 0
	for _, p := range r.Nodes {
		if p.Enforced {
			enforcing++
			continue
		}
		fmt.Fprintf(w, "%s: %s\n", p.Node, strings.Join(p.Missing, "; "))
	}
	after := ""
	if !r.Enforced {
		after = fmt.Sprintf(" after %s", timeout)
	}
	_, err := fmt.Fprintf(w, "%d of %d nodes enforce the policies of the API server%s.\n", enforcing,
		len(r.Nodes), after)
	return err
}
