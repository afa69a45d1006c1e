package audit

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/audit/result"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/check"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/cluster"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/preflight"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/redact"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/remote"
	"github.com/kubeveil/kubeveil/pkg/version"
)

// never lists the things that no run examines.
var never = []string{
	"packets before and after this run, and packets below the kernel's packet sockets (XDP)",
	"a network that the nodes' guards do not protect, such as a second link of a pod",
	"disks and volumes: veilctl volume list shows these",
	"whether a node runs the programs of its image: each node reports about itself",
}

// collector gathers the sections of one report.
type collector struct {
	cluster *remote.Cluster
	// image is the image of the tools for connectivity. "" leaves connectivity out.
	image  string
	access remote.Access
	long   time.Duration

	began    time.Time
	progress io.Writer
	mu       sync.Mutex // guards progress

	// veild holds veild's pod by Linux node. The pod is empty if the node has none.
	veild map[string]corev1.Pod
	// podsErr is the reason why veild's pods are not known.
	podsErr error
}

func (c *collector) say(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Fprintf(c.progress, "[%4.0fs] %s …\n", time.Since(c.began).Seconds(),
		fmt.Sprintf(format, args...))
}

// run gathers all sections. A part that cannot be read is recorded in its section and does not end
// the run. If ctx ends, run returns what it has read so far.
func (c *collector) run(ctx context.Context) *result.Result {
	c.say("reading the API server and the status of all nodes")
	facts := check.Gather(ctx, c.cluster, "", nil)
	ours, oursErr := c.pods(ctx)
	before, beforeErr := cluster.Look(ctx, c.cluster)
	status := judgeStatus(cluster.Assess(before), beforeErr)

	var leaks, walk *result.Section
	var both errgroup.Group
	both.Go(func() error { leaks = c.leaks(ctx); return nil })
	both.Go(func() error { walk = c.connectivity(ctx); return nil })
	_ = both.Wait() // neither returns an error

	c.say("reading dropped packets and flows")
	after, afterErr := cluster.Look(ctx, c.cluster)
	if afterErr == nil {
		beginning := status
		status = judgeStatus(cluster.Assess(after), nil)
		addBadStart(status, beginning)
	}
	since := "--since=" + (time.Since(c.began) + time.Second).Round(time.Second).String()
	drops := judgeDrops(c.lines(ctx, "reason", "drops", since), cluster.Assess(before),
		cluster.Assess(after))
	if afterErr != nil {
		drops.Lacks("all nodes", afterErr.Error())
	}
	flows := judgeFlows(c.lines(ctx, "class", "flows"))

	return &result.Result{
		Server: c.cluster.Server, Veilctl: version.String(), Began: c.began.UTC(),
		Ended: time.Now().UTC(), For: c.long.String(), Interrupted: ctx.Err() != nil, Never: never,
		Sections: []*result.Section{status, leaks, walk, flows, drops, judgeCheck(facts),
			judgeVersions(ours, oursErr, before),
			judgeExceptions(newSetting(facts, ours, oursErr, cluster.Assess(before)))},
	}
}

// secrets returns a Redactor for the report. It removes all keys, public keys included.
func (c *collector) secrets() *redact.Redactor {
	return redact.New(nil, redact.OfClient(c.cluster.Config))
}

// pods returns all pods of Kubeveil, and sets c.veild.
func (c *collector) pods(ctx context.Context) ([]corev1.Pod, error) {
	ours, err := c.cluster.Client.CoreV1().Pods(remote.SystemNamespace).List(ctx,
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=kubeveil"})
	if err != nil {
		c.podsErr = fmt.Errorf("list the pods of Kubeveil: %w", err)
		return nil, c.podsErr
	}
	names, err := c.cluster.VeildPods(ctx)
	if err != nil {
		c.podsErr = err
		return ours.Items, nil
	}
	c.veild = map[string]corev1.Pod{}
	for node, name := range names {
		i := slices.IndexFunc(ours.Items, func(p corev1.Pod) bool { return p.Name == name })
		c.veild[node] = corev1.Pod{}
		if i >= 0 {
			c.veild[node] = ours.Items[i]
		}
	}
	return ours.Items, nil
}

// noPod is the reason why a node did not answer.
const noPod = "no pod of veild on this node"

// lines runs the verb called name on all nodes, and counts the JSON lines that it prints by the
// value of field. It returns the answers sorted by node.
func (c *collector) lines(ctx context.Context, field, name string, flags ...string) []lineAnswer {
	if c.podsErr != nil {
		return []lineAnswer{{tally: tally{node: "all nodes"}, err: c.podsErr.Error()}}
	}
	nodes := slices.Sorted(maps.Keys(c.veild))
	answers := make([]lineAnswer, len(nodes))
	var g errgroup.Group
	g.SetLimit(verb.NodesAtOnce)
	for i, node := range nodes {
		g.Go(func() error {
			answers[i] = c.linesOf(ctx, node, field, name, flags)
			return nil
		})
	}
	_ = g.Wait() // no node returns an error
	return answers
}

func (c *collector) linesOf(ctx context.Context, node, field, name string,
	flags []string) lineAnswer {
	t := tally{node: node, field: field}
	pod := c.veild[node].Name
	switch {
	case ctx.Err() != nil:
		return lineAnswer{tally: t, err: interrupted}
	case pod == "":
		return lineAnswer{tally: t, err: noPod}
	}
	ctx, cancel := context.WithTimeout(ctx, verb.NodeLimit)
	defer cancel()
	err := c.cluster.ExecVeilctlTo(ctx, &t, pod, append([]string{name, "-o", "json"}, flags...)...)
	return newAnswer(t, name, err)
}

// interrupted is the reason for everything that an interrupted run did not examine.
const interrupted = "the run was interrupted before this was read"

// newSetting returns the facts that decide which exceptions are in force.
func newSetting(facts preflight.Facts, ours []corev1.Pod, oursErr error,
	status cluster.Report) setting {
	s := setting{from: facts.ConfigFrom, groups: facts.Groups, sources: map[string]string{},
		unread: cmp.Or(facts.Server.Err, facts.Unread["configuration"],
			facts.Unread["kubeadm-config"])}
	var err error
	if s.cfg, err = config.Parse("any", []byte(facts.Config), facts.Kubeadm); err != nil {
		s.unread = cmp.Or(s.unread, err.Error())
	}
	if oursErr != nil {
		s.podsUnread = oursErr.Error()
	}
	s.volumes = slices.ContainsFunc(ours, func(p corev1.Pod) bool {
		return p.Labels["app.kubernetes.io/component"] == "veil-csi"
	})
	for _, n := range status.Nodes {
		if n.Status != nil {
			s.sources[n.Node] = n.Status.TunnelSources
		}
	}
	return s
}
