package testbed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/e2e/bench/bare"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
	"github.com/kubeveil/kubeveil/pkg/service/link"
	"github.com/kubeveil/kubeveil/pkg/service/planner"
)

// node is a node with one pod and a link to each server.
type node struct {
	number     int
	space, pod *suite.Space
	// group is the cgroup of the clients.
	group *os.File
	undo  []func() error
}

// node makes node i with its pod and its links to the servers, without anything of Kubeveil.
func (g *Testbed) node(ctx context.Context, i int) (err error) {
	n := &node{number: i}
	g.nodes[i] = n
	if n.group, err = g.groups.Add(fmt.Sprintf("node%d", i)); err != nil {
		return err
	}
	if n.space, err = suite.NewSpace(fmt.Sprintf("node %d", i)); err != nil {
		return err
	}
	if n.pod, err = suite.NewSpace(fmt.Sprintf("pod of node %d", i)); err != nil {
		return err
	}

	lines := []string{"link add pod type veth peer name eth0 netns " + n.pod.Path()}
	lines = append(append(lines, addresses("pod", gateway(i), 24)...), "link set pod up")
	for k, server := range g.servers {
		near, far := wire(i, k)
		up := fmt.Sprintf("up%d", k)
		lines = append(lines,
			fmt.Sprintf("link add %s type veth peer name node%d netns %s", up, i, server.Path()))
		lines = append(append(lines, addresses(up, near, 30)...), "link set "+up+" up")
		lines = append(lines, routes(netip.PrefixFrom(serverAddr(k), 32), far)...)
	}
	if err := n.space.IP(ctx, lines...); err != nil {
		return err
	}

	for k, server := range g.servers {
		near, far := wire(i, k)
		lines := append(addresses(fmt.Sprintf("node%d", i), far, 30),
			fmt.Sprintf("link set node%d up", i))
		if err := server.IP(ctx, append(lines, routes(podNet(i), near)...)...); err != nil {
			return err
		}
	}
	return errors.Join(
		n.space.Sysctl("net/ipv4/ip_forward", "1", "net/ipv6/conf/all/forwarding", "1"),
		n.pod.IP(ctx, append(addresses("eth0", podAddr(i), 24), "link set eth0 up",
			fmt.Sprintf("route add default via %s", gateway(i)),
			fmt.Sprintf("route add default via %s", six(gateway(i))))...))
}

// ours installs everything that veild installs on a node except tunnels, and a service table with
// entry 0, whose backends are the servers. pins is the folder for pins of BPF objects.
func (n *node) ours(ctx context.Context, pins string) error {
	pod := podAddr(n.number)
	if err := n.space.IP(ctx, fmt.Sprintf("link set pod group %d", abi.PodGroup),
		fmt.Sprintf("route add %s dev pod table %d", pod, abi.TablePod),
		fmt.Sprintf("route add %s dev pod table %d", six(pod), abi.TablePod)); err != nil {
		return err
	}
	err := n.space.Do(func() error {
		release, err := bare.GuardedNode{Pods: both(podNet(n.number)), Services: both(services),
			Addrs: n.addrs(), Pins: pins}.Apply()
		if err != nil {
			return err
		}
		n.undo = append(n.undo, release)
		return n.translate(pins)
	})
	if err != nil {
		return err
	}

	cmd := n.space.Command(ctx, nil, "nft", "-f", "-")
	element := "add element inet %s %s { \"pod\" . %s }\n"
	cmd.Stdin = strings.NewReader(fmt.Sprintf(element, abi.NFTPodTable, abi.NFTPodSet4, pod) +
		fmt.Sprintf(element, abi.NFTPodTable, abi.NFTPodSet6, six(pod)))
	_, err = suite.Output(cmd)
	return err
}

// addrs returns the node's own addresses.
func (n *node) addrs() (out []netip.Addr) {
	for k := range serverCount {
		near, _ := wire(n.number, k)
		out = append(out, near, six(near))
	}
	return out
}

// translate fills a service table with entry 0 and attaches the programs at links and at sockets,
// in the namespace of the calling thread.
func (n *node) translate(pins string) error {
	log, limits := slog.New(slog.DiscardHandler), service.DefaultLimits
	t, err := bpfmaps.Open(bpfmaps.Config{Dir: pins, Limits: limits, Links: true,
		TunnelPort: abi.TunnelPort, Log: log})
	if err != nil {
		return err
	}
	n.undo = append(n.undo, t.Close)
	p, err := planner.New("node", limits)
	if err != nil {
		return err
	}
	p.SetAPIServer(service.APIServer{Frontends: []netip.AddrPort{Frontend, Frontend6},
		Backends: slices.Concat(Servers(), Servers6()), Host: []service.HostFrontend{
			{Addr: HostFrontend, Backends: Servers()}, {Addr: HostFrontend6,
				Backends: Servers6()}}})
	if err := t.Apply(p.Plan()); err != nil {
		return err
	}
	if err := errors.Join(p.Problems()...); err != nil {
		return err
	}

	links := link.New(t, link.Options{Log: log})
	if err := links.SetSelf(both(podNet(n.number)), n.addrs()); err != nil {
		return err
	}
	if _, err := links.AttachLinks(); err != nil {
		return err
	}
	_, err = t.AttachSockets(n.group.Name())
	return err
}

func (n *node) close() error {
	var errs []error
	for _, undo := range slices.Backward(n.undo) {
		errs = append(errs, undo())
	}
	if n.group != nil {
		errs = append(errs, n.group.Close())
	}
	for _, s := range []*suite.Space{n.pod, n.space} {
		if s != nil {
			s.Close()
		}
	}
	return errors.Join(errs...)
}
