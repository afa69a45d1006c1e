package path

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/cluster"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	table "github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/kube/veilnode"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// Result is what was seen of the path from one node to another. Its JSON is output for programs.
type Result struct {
	From string `json:"from"`
	To   string `json:"to"`
	// Address is where the datagrams were sent: a node's address and the port of its tunnels.
	Address netip.AddrPort `json:"address"`
	// Sent and Arrived are sizes of IP packets in bytes, the largest first.
	Sent    []int `json:"sent"`
	Arrived []int `json:"arrived"`

	failed error // of the sender
}

// String describes the path in one line.
func (p Result) String() string {
	largest := 0
	for _, size := range p.Arrived {
		largest = max(largest, size)
	}
	if largest == 0 {
		return fmt.Sprintf("%s to %s at %s: nothing arrived", p.From, p.To, p.Address)
	}
	return fmt.Sprintf("%s to %s at %s: packets of %d bytes arrive", p.From, p.To, p.Address,
		largest)
}

// End is a cluster at one end of the path.
type End struct {
	*remote.Cluster
	// What names the cluster in messages.
	What string
	// Veild is the configuration of veild.
	Veild config.Config
	Nodes []remote.Node

	node  remote.Node
	claim *table.Claim
	pod   *remote.Pod // nil before it is created
}

// Prober checks the path between a node of each cluster, both ways. Its Close must be called after
// Check.
type Prober struct {
	Here, There *End
	// Step is called with a sentence about each step, in the form of fmt.
	Step func(format string, args ...any)
}

func (p *Prober) ends() []*End { return []*End{p.Here, p.There} }

// Choose selects the nodes: those of the flag, or the first Ready ones on which Kubeveil runs.
func (p *Prober) Choose(ctx context.Context, flag string) error {
	names := []string{"", ""}
	if flag != "" {
		if names = strings.Split(flag, ","); len(names) != 2 {
			return fmt.Errorf("--nodes %s: write two names with a comma between: %w", flag,
				verb.ErrUsage)
		}
	}
	var errs []error
	for i, e := range p.ends() {
		claims, err := cluster.Claims(ctx, e.Cluster)
		if err == nil {
			err = e.choose(names[i], claims)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", e.What, err))
		}
	}
	return errors.Join(errs...)
}

// choose selects the node with a name, or any if name is "": rather one that takes pods. claims
// holds the specs of VeilNodes.
func (e *End) choose(name string, claims map[string][]byte) error {
	ready := slices.DeleteFunc(slices.Clone(e.Nodes), func(n remote.Node) bool {
		return !n.Ready || claims[n.Name] == nil || name != "" && n.Name != name
	})
	slices.SortStableFunc(ready, func(a, b remote.Node) int {
		return cmp.Compare(rank(a), rank(b))
	})
	if len(ready) == 0 {
		return fmt.Errorf("there is no Ready node %swith a VeilNode: wait for one, or write "+
			"--skip-path", strings.TrimPrefix(name+" ", " "))
	}
	e.node = ready[0]
	var err error
	if e.claim, err = veilnode.Decode(claims[e.node.Name]); err != nil {
		return fmt.Errorf("VeilNode %s: %w", e.node.Name, err)
	}
	return nil
}

func rank(n remote.Node) int {
	if n.Schedulable {
		return 0
	}
	return 1
}

// Times of a check. Both ends of a direction end early.
const (
	passFor = 30 * time.Second
	// restFor is how long a receiver waits for further sizes after the first.
	restFor = 5 * time.Second
	// closeFor bounds the removal of the pods.
	closeFor = 2 * time.Minute
)

// Check returns the paths both ways. It returns an error if packets of the tunnel do not arrive one
// way, or are too small for a tunnel.
func (p *Prober) Check(ctx context.Context) (paths []Result, err error) {
	to, err := p.addresses()
	if err != nil {
		return nil, err
	}
	pods, starting := errgroup.WithContext(ctx)
	for _, e := range p.ends() {
		p.Step("starting a pod on node %s of %s", e.node.Name, e.What)
		pods.Go(func() error { return e.start(starting) })
	}
	if err := pods.Wait(); err != nil {
		return nil, err
	}

	sizes := p.sizes()
	p.Step("sending datagrams both ways between %s and %s", p.Here.node.Name, p.There.node.Name)
	for i, out := range p.ends() {
		in := p.ends()[1-i]
		one := Result{From: out.node.Name, To: in.node.Name, Sent: sizes, Address: to[1-i]}
		if err := one.pass(ctx, out.pod, in.pod); err != nil {
			return nil, err
		}
		paths = append(paths, one)
	}
	return paths, p.judge(paths, to[0].Addr().Is6())
}

// judge returns an error for a path that cannot carry a tunnel.
func (p *Prober) judge(paths []Result, outer6 bool) error {
	least := table.MinUnderlayMTU(outer6, p.Here.Veild.Families())
	var errs []error
	for _, one := range paths {
		switch {
		case len(one.Arrived) == 0:
			err := fmt.Errorf("no datagram from node %s arrives at node %s: permit UDP to %s from "+
				"all nodes of the other cluster, or write --skip-path", one.From, one.To,
				one.Address)
			if one.failed != nil {
				err = fmt.Errorf("%w; %w", err, one.failed)
			}
			errs = append(errs, err)
		case slices.Max(one.Arrived) < least:
			errs = append(errs, fmt.Errorf("from node %s to node %s, packets of %d bytes arrive, "+
				"and a tunnel needs %d: raise the MTU of the path", one.From, one.To,
				slices.Max(one.Arrived), least))
		}
	}
	return errors.Join(errs...)
}

// addresses returns the endpoints of Here and There between which veild makes the tunnel.
func (p *Prober) addresses() (to [2]netip.AddrPort, err error) {
	both := table.Families{V4: true, V6: true}
	for _, e := range p.ends() {
		_, v4 := table.Node{Claim: e.claim}.Endpoint(table.Families{V4: true})
		_, v6 := table.Node{Claim: e.claim}.Endpoint(table.Families{V6: true})
		both.V4, both.V6 = both.V4 && v4, both.V6 && v6
	}
	for i, e := range p.ends() {
		var ok bool
		if to[i], ok = (table.Node{Claim: e.claim}).Endpoint(both); !ok {
			return to, fmt.Errorf("nodes %s and %s have no endpoints of the same IP family",
				p.Here.node.Name, p.There.node.Name)
		}
	}
	return to, nil
}

// sizes returns the sizes of IP packets to try, the largest first: the MTU of both nodes, and usual
// ones below it.
func (p *Prober) sizes() []int {
	most := min(cmp.Or(p.Here.claim.MTU, 1500), cmp.Or(p.There.claim.MTU, 1500))
	sizes := []int{most}
	for _, size := range []int{1500, 1450, 1420, 1400, 1380, 1340, 1280} {
		if size < most {
			sizes = append(sizes, size)
		}
	}
	return sizes
}

// pass sends datagrams from one pod to the node of another, and sets the sizes that arrive.
func (r *Result) pass(ctx context.Context, out, in *remote.Pod) error {
	list := strings.Trim(strings.ReplaceAll(fmt.Sprint(r.Sent), " ", ","), "[]")
	probe := func(verb, flag, value string) []string {
		return []string{veilctl, "site", probeVerb, verb, flag, value, "--sizes", list, "--for",
			passFor.String(), "--token"}
	}
	token := remote.NewCanary()
	sending, stop := context.WithCancel(ctx)
	defer stop()
	sent := make(chan error, 1)
	go func() {
		_, err := out.Exec(sending, append(probe("send", "--to", r.Address.String()), token)...)
		sent <- err
	}()

	answer, err := in.Exec(ctx, append(probe("receive", "--port", fmt.Sprint(r.Address.Port())),
		token)...)
	if err == nil {
		err = remote.DecodeAnswer(answer, &r.Arrived)
	}
	if err != nil || len(r.Arrived) > 0 {
		stop() // The sender would continue.
	}
	r.failed = <-sent
	if err != nil {
		return fmt.Errorf("receive at node %s: %w", in.Node, err)
	}
	return nil
}
