package path

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/cluster"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	table "github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
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
}

// Prober checks the path between a node of each cluster, both ways.
type Prober struct {
	Here, There *End
	// Step is called with a sentence about each step, in the form of fmt.
	Step func(format string, args ...any)
	// from and to are the nodes of Here and There.
	from, to remote.Node
}

// Choose selects the nodes: those of the flag, or the first Ready ones.
func (p *Prober) Choose(flag string) error {
	names := []string{"", ""}
	if flag != "" {
		if names = strings.Split(flag, ","); len(names) != 2 {
			return fmt.Errorf("--nodes %s: write two names with a comma between: %w", flag,
				verb.ErrUsage)
		}
	}
	var err1, err2 error
	p.from, err1 = choose(p.Here, names[0])
	p.to, err2 = choose(p.There, names[1])
	return errors.Join(err1, err2)
}

// choose returns the node with a name, or a Ready one if name is "": rather one that takes pods.
func choose(s *End, name string) (remote.Node, error) {
	ready := slices.DeleteFunc(slices.Clone(s.Nodes), func(n remote.Node) bool {
		return !n.Ready || name != "" && n.Name != name
	})
	slices.SortStableFunc(ready, func(a, b remote.Node) int {
		return cmp.Compare(rank(a), rank(b))
	})
	switch {
	case len(ready) > 0:
		return ready[0], nil
	case name != "":
		return remote.Node{}, fmt.Errorf("%s has no Ready node %s", s.What, name)
	}
	return remote.Node{}, fmt.Errorf("%s has no Ready node: wait for one, or write --skip-path",
		s.What)
}

func rank(n remote.Node) int {
	if n.Schedulable {
		return 0
	}
	return 1
}

// Times of a check.
const (
	sendFor    = 8 * time.Second
	receiveFor = 12 * time.Second
)

// podLimit is the time after which the kubelet ends a pod of a check that was interrupted, seconds.
const podLimit int64 = 600

// Check returns the paths both ways. It returns an error if packets of the tunnel do not arrive one
// way, or are too small for a tunnel.
func (p *Prober) Check(ctx context.Context) (paths []Result, err error) {
	sizes, err := p.sizes(ctx)
	if err != nil {
		return nil, err
	}
	a, closeA, err := p.pod(ctx, p.Here, p.from)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeA()) }()
	b, closeB, err := p.pod(ctx, p.There, p.to)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeB()) }()

	is4, err := p.family()
	if err != nil {
		return nil, err
	}
	p.Step("sending datagrams both ways between %s and %s", p.from.Name, p.to.Name)
	for _, way := range []struct {
		out, in  *remote.Pod
		from, to remote.Node
		port     int
	}{{a, b, p.from, p.to, p.There.Veild.Tunnel.Port},
		{b, a, p.to, p.from, p.Here.Veild.Tunnel.Port}} {
		addr, _ := way.to.Addr(is4)
		one := Result{From: way.from.Name, To: way.to.Name, Sent: sizes,
			Address: netip.AddrPortFrom(addr, uint16(way.port))}
		if one.Arrived, err = pass(ctx, way.out, way.in, one.Address, sizes); err != nil {
			return nil, err
		}
		paths = append(paths, one)
	}
	return paths, p.judge(paths, !is4)
}

// judge returns an error for a path that cannot carry a tunnel.
func (p *Prober) judge(paths []Result, outer6 bool) error {
	least := table.MinUnderlayMTU(outer6, p.Here.Veild.Families())
	var errs []error
	for _, one := range paths {
		switch {
		case len(one.Arrived) == 0:
			errs = append(errs, fmt.Errorf("no datagram from node %s arrives at node %s: permit "+
				"UDP to %s from all nodes of the other cluster, or write --skip-path", one.From,
				one.To, one.Address))
		case slices.Max(one.Arrived) < least:
			errs = append(errs, fmt.Errorf("from node %s to node %s, packets of %d bytes arrive, "+
				"and a tunnel needs %d: raise the MTU of the path", one.From, one.To,
				slices.Max(one.Arrived), least))
		}
	}
	return errors.Join(errs...)
}

// family reports whether the nodes reach each other by IPv4. It prefers IPv4.
func (p *Prober) family() (is4 bool, err error) {
	for _, is4 := range []bool{true, false} {
		_, from := p.from.Addr(is4)
		_, to := p.to.Addr(is4)
		if from && to {
			return is4, nil
		}
	}
	return false, fmt.Errorf("nodes %s and %s have no addresses of the same IP family", p.from.Name,
		p.to.Name)
}

// sizes returns the sizes of IP packets to try, the largest first: the MTU of both nodes, and usual
// ones below it.
func (p *Prober) sizes(ctx context.Context) ([]int, error) {
	most := 9000
	for _, s := range []struct {
		side *End
		node string
	}{{p.Here, p.from.Name}, {p.There, p.to.Name}} {
		claims, err := cluster.Claims(ctx, s.side.Cluster)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.side.What, err)
		}
		var claim struct{ MTU int }
		if err := json.Unmarshal(claims[s.node], &claim); err != nil || claim.MTU <= 0 {
			claim.MTU = 1500
		}
		most = min(most, claim.MTU)
	}
	sizes := []int{most}
	for _, size := range []int{1500, 1450, 1420, 1400, 1380, 1340, 1280} {
		if size < most {
			sizes = append(sizes, size)
		}
	}
	return sizes, nil
}

// pod starts a pod on the host's network of a node, with the image of veild.
func (p *Prober) pod(ctx context.Context, s *End, node remote.Node) (pod *remote.Pod,
	done func() error, err error) {
	ds, err := s.Client.AppsV1().DaemonSets(remote.SystemNamespace).Get(ctx, "veild",
		metav1.GetOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("%s: read DaemonSet veild: %w", s.What, err)
	}
	p.Step("starting a pod on node %s of %s", node.Name, s.What)
	n, err := s.Namespace(ctx, "kubeveil-site-path", remote.Privileged)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", s.What, err)
	}
	done = func() error { return n.Close(context.WithoutCancel(ctx)) }
	pod = &remote.Pod{Name: "path", Node: node.Name, HostNetwork: true,
		Image:        ds.Spec.Template.Spec.Containers[0].Image,
		Command:      []string{veilctl, "site", probeVerb, "hold"},
		Capabilities: []corev1.Capability{"NET_RAW"}, Change: func(o *corev1.Pod) {
			o.Spec.ImagePullSecrets = ds.Spec.Template.Spec.ImagePullSecrets
			o.Spec.ActiveDeadlineSeconds = new(podLimit)
		}}
	if err := n.Run(ctx, pod); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("%s: %w", s.What, err), done())
	}
	return pod, done, nil
}

// veilctl is the path of this program in the image of veild.
const veilctl = "/usr/local/bin/veilctl"

// pass sends datagrams from one pod to the node of another, and returns the sizes that arrive.
func pass(ctx context.Context, out, in *remote.Pod, to netip.AddrPort, sizes []int) ([]int, error) {
	token := remote.NewCanary()
	list := strings.Trim(strings.ReplaceAll(fmt.Sprint(sizes), " ", ","), "[]")
	var answer []byte
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		answer, err = in.Exec(ctx, veilctl, "site", probeVerb, "receive", "--port",
			fmt.Sprint(to.Port()), "--token", token, "--sizes", list, "--for", receiveFor.String())
		return err
	})
	g.Go(func() error {
		_, err := out.Exec(ctx, veilctl, "site", probeVerb, "send", "--to", to.String(), "--token",
			token, "--sizes", list, "--for", sendFor.String())
		return err
	})
	if err := g.Wait(); err != nil {
		return nil, err
	}
	var arrived []int
	if err := remote.DecodeAnswer(answer, &arrived); err != nil {
		return nil, fmt.Errorf("answer of the pod on node %s: %w", in.Node, err)
	}
	return arrived, nil
}
