package service

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/e2e/bench/bpffs"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

// own is the prefix of the names of the suite's cgroups and folders.
const own = suite.Prefix("kubeveil-bench-service-")

// ground is the test bed: the endpoints and the lanes.
type ground struct {
	ends   [endpoints]*suite.Space
	lanes  []*lane
	groups *suite.Groups
	pins   *bpffs.FS
	// dir is the folder for files of programs.
	dir  string
	self suite.Self
	// haproxyPath and kubeProxyPath are the paths of haproxy and kube-proxy.
	haproxyPath, kubeProxyPath string

	daemons []*suite.Daemon
}

// lane is the client and the node of one side with a table of one size.
type lane struct {
	side   string
	size   size
	number int
	client *suite.Space
	node   *suite.Space
	// group is the cgroup of a client that is a pod. All lanes have one, because the cgroup may
	// affect scheduling. Only in lanes of Kubeveil are programs at sockets attached to it.
	group *os.File
	undo  []func() error
}

// newGround makes the endpoints and starts their servers. The caller must close the ground also
// after an error.
func newGround(ctx context.Context, o RunConfig) (*ground, error) {
	g := &ground{haproxyPath: o.HAProxy, kubeProxyPath: o.KubeProxy}
	var err error
	if g.self, err = suite.NewSelf(Suite); err != nil {
		return g, err
	}
	if g.dir, err = own.Folder(); err != nil {
		return g, err
	}
	if g.pins, err = bpffs.New(); err != nil {
		return g, err
	}
	if g.groups, err = own.Groups(); err != nil {
		return g, err
	}

	for i := range g.ends {
		if g.ends[i], err = suite.NewSpace(endpointName(i)); err != nil {
			return g, err
		}
		if err := g.ends[i].IP(ctx, fmt.Sprintf("route add local %s dev lo", block(i)),
			fmt.Sprintf("route add local %s dev lo", spread)); err != nil {
			return g, err
		}
		if err := g.serve(ctx, g.ends[i]); err != nil {
			return g, err
		}
	}

	return g, nil
}

func endpointName(i int) string { return fmt.Sprintf("endpoint-%d", i+1) }

// serve starts the servers of an endpoint.
func (g *ground) serve(ctx context.Context, s *suite.Space) error {
	for _, p := range []struct {
		ports []uint16
		argv  []string
	}{
		{[]uint16{portHTTP, portEcho}, g.self.Argv("serve", s.Name)},
		{[]uint16{portIperf}, []string{"iperf3", "-s", "-p", fmt.Sprint(portIperf)}},
		{[]uint16{portSockperf}, []string{"sockperf", "server", "--tcp", "-i", "0.0.0.0", "-p",
			fmt.Sprint(portSockperf)}},
	} {
		if err := g.daemon(ctx, s, p.ports, p.argv...); err != nil {
			return err
		}
	}
	return nil
}

// daemon starts a program that runs until the ground is closed, and waits until it listens on its
// ports.
func (g *ground) daemon(ctx context.Context, s *suite.Space, ports []uint16, argv ...string) error {
	d, err := s.Start(ctx, suite.Program{Argv: argv, Ports: ports})
	if err != nil {
		return err
	}
	g.daemons = append(g.daemons, d)
	return nil
}

// close ends all programs and removes everything of the ground.
func (g *ground) close() error {
	for _, d := range g.daemons {
		d.Close()
	}
	var errs []error
	for _, l := range g.lanes {
		errs = append(errs, l.close())
	}
	for _, s := range g.ends {
		if s != nil {
			s.Close()
		}
	}
	if g.pins != nil {
		_ = g.pins.Close()
	}
	if g.groups != nil {
		errs = append(errs, g.groups.Close())
	}
	if g.dir != "" {
		errs = append(errs, os.RemoveAll(g.dir))
	}
	return errors.Join(errs...)
}

// newLane makes the namespaces, links and routes of a lane. It does not fill the side's table.
func (g *ground) newLane(ctx context.Context, side string, s size) (*lane, error) {
	l := &lane{side: side, size: s, number: len(g.lanes)}
	if l.number >= maxLanes {
		return nil, fmt.Errorf("more than %d lanes", maxLanes)
	}

	g.lanes = append(g.lanes, l)
	var err error
	if l.group, err = g.groups.Add(fmt.Sprintf("lane%d", l.number)); err != nil {
		return nil, err
	}
	if l.client, err = suite.NewSpace("client of " + l.String()); err != nil {
		return nil, err
	}
	if l.node, err = suite.NewSpace("node of " + l.String()); err != nil {
		return nil, err
	}

	lines := []string{
		"link add client type veth peer name eth0 netns " + l.client.Path(),
		fmt.Sprintf("address add %s/24 dev client", nodeAddr(l.number)),
		"link set client up",
	}

	for i, end := range g.ends {
		node, far := wire(l.number, i)
		lines = append(lines,
			fmt.Sprintf("link add end%d type veth peer name lane%d netns %s", i, l.number,
				end.Path()),
			fmt.Sprintf("address add %s/30 dev end%d", node, i),
			fmt.Sprintf("link set end%d up", i),
			fmt.Sprintf("route add %s via %s", block(i), far))
	}

	lines = append(lines, spreadRoute(l.number, unix.RT_TABLE_MAIN))
	// A route's gateway is reachable when the link is up; the far end may still be down.
	if err := l.node.IP(ctx, lines...); err != nil {
		return nil, err
	}

	for i, end := range g.ends {
		node, far := wire(l.number, i)
		err := end.IP(ctx,
			fmt.Sprintf("address add %s/30 dev lane%d", far, l.number),
			fmt.Sprintf("link set lane%d up", l.number),
			fmt.Sprintf("route add %s via %s", clientNet(l.number), node))
		if err != nil {
			return nil, err
		}
	}

	err = l.client.IP(ctx, fmt.Sprintf("address add %s/24 dev eth0", clientAddr(l.number)),
		"link set eth0 up",
		fmt.Sprintf("route add default via %s", nodeAddr(l.number)))
	return l, errors.Join(err,
		l.node.Sysctl("net/ipv4/ip_forward", "1", "net/ipv4/fib_multipath_hash_policy", "1",
			"net/ipv4/tcp_wmem", sendBuffer),
		l.client.Sysctl("net/ipv4/ip_local_port_range", "1024 65535", "net/ipv4/tcp_wmem",
			sendBuffer, "net/core/txrehash", noRehash))
}

// noRehash is the value of txrehash with which a socket keeps its hash after a retransmission
// (Documentation/admin-guide/sysctl/net.rst). In the direct lanes the node's routes choose the
// endpoint by this hash (fib_multipath_hash in net/ipv4/route.c). With another hash, a connection
// goes on to another endpoint, which resets it.
const noRehash = "0"

// sendBuffer is the value of tcp_wmem: the minimum, initial and maximum size of a sender's buffer
// in bytes. Without this bound, a stream between two CPUs runs at either 20 or 50 Gbit/s, depending
// on its first moments. Once the receiver's window is full, its acknowledgements clock the sender.
// The receiving CPU then also does all sending, and is too busy to open the window again. If the
// buffer is smaller than the window, each CPU does its own work.
const sendBuffer = "4096 16384 131072"

// spreadRoute returns the line of ip(8) that adds the route to spread, via all endpoints, to a
// table of lane number's node.
func spreadRoute(number, table int) string {
	line := fmt.Sprintf("route add %s table %d", spread, table)
	for i := range endpoints {
		_, far := wire(number, i)
		line += fmt.Sprintf(" nexthop via %s", far)
	}
	return line
}

// String returns the side and the size of the lane, for errors and progress.
func (l *lane) String() string { return l.side + ", " + l.size.String() }

func (l *lane) close() error {
	var errs []error
	for i := len(l.undo) - 1; i >= 0; i-- {
		errs = append(errs, l.undo[i]())
	}
	if l.group != nil {
		errs = append(errs, l.group.Close())
	}
	for _, s := range []*suite.Space{l.client, l.node} {
		if s != nil {
			s.Close()
		}
	}
	return errors.Join(errs...)
}

// reach is the kind of a client, which decides the address by which it reaches a service.
type reach int

const (
	// pod is a pod of the node, which uses the ClusterIP.
	pod reach = iota
	// outside is a client outside of the cluster, which uses the address of a load balancer.
	outside
)

func (r reach) String() string {
	if r == pod {
		return "pod"
	}
	return "outside"
}

// command returns a command that runs at the client. A pod runs in the lane's cgroup, where
// programs at sockets translate its connections; a client outside does not.
func (l *lane) command(ctx context.Context, r reach, name string, args ...string) *exec.Cmd {
	if r == pod {
		return l.client.Command(ctx, l.group, name, args...)
	}
	return l.client.Command(ctx, nil, name, args...)
}

// direct reports whether the client's packets are not translated. The node's routes then spread
// connections over the endpoints, by a hash of addresses and ports. Each thread of a client thus
// has connections to all endpoints, as with a service. With one endpoint per thread, threads would
// wait less for one another than on the other paths.
func (l *lane) direct() bool { return l.side == sideDirect || l.side == sideGuarded }

// target returns the address and port by which the client reaches a measured service, given by its
// index in measured.
func (l *lane) target(r reach, service int) netip.AddrPort {
	m := measured[service]
	switch {
	case l.direct() && m.single:
		return netip.AddrPortFrom(backend(0), m.port)
	case l.direct():
		return netip.AddrPortFrom(spread, m.port)
	case r == pod:
		return netip.AddrPortFrom(virtualAddr(service), m.port)
	}
	return netip.AddrPortFrom(externalAddr(service), m.port)
}

// file returns the path of a file of the lane in g.dir.
func (g *ground) file(l *lane, name string) string {
	return filepath.Join(g.dir, fmt.Sprintf("%d-%s", l.number, name))
}
