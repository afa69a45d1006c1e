package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab/apiserver"
	"github.com/kubeveil/kubeveil/e2e/lab/authority"
	"github.com/kubeveil/kubeveil/e2e/lab/buildtree"
	"github.com/kubeveil/kubeveil/e2e/lab/etcd"
)

// APIPort is the port of the API servers.
const APIPort = apiserver.Port

// Control is a control plane: etcd and kube-apiserver in a separate host.
type Control struct {
	// Admin connects from within the control plane's host, so its traffic is not on the underlay.
	apiserver.Admin
	// APIServer is the present process of the first API server.
	APIServer *Process
	// Servers are all API servers, in the order of their numbers. The first has number 0.
	Servers []*Server

	etcd *etcd.Server
	host *Host
	lab  *Lab
	// given is the state of the control plane before the lab's first node.
	given given
}

// newControl takes a control plane from the pool, or else starts one, and waits until the API
// server is ready.
func (l *Lab) newControl(ctx context.Context) error {
	if c := l.opts.Pool.take(l); c != nil {
		l.Control = c // set now, so that Close ends c after a later failure
		return c.join(ctx)
	}
	root, err := buildtree.Root()
	if err != nil {
		return err
	}
	if err := buildtree.NeedKubernetes(root); err != nil {
		return err
	}
	h, err := l.newHost(ctx, l.serverName(0))
	if err != nil {
		return err
	}

	c := &Control{host: h, lab: l}
	l.Control = c // set now, as above
	if err := l.plug(ctx, h, h.Name, "eth0",
		l.opts.Family.Underlay(l.serverByte(0))); err != nil {
		return err
	}
	return c.start(ctx)
}

// start starts the programs and waits until the API servers are ready.
func (c *Control) start(ctx context.Context) error {
	if err := c.makeCerts(); err != nil {
		return err
	}
	if err := c.startEtcd(ctx); err != nil {
		return err
	}
	if err := c.startAPIServer(ctx); err != nil {
		return err
	}
	c.Servers = []*Server{{Host: c.host, Process: c.APIServer}}

	if err := c.connect(); err != nil {
		return err
	}
	if err := c.WaitReady(ctx); err != nil {
		return err
	}

	for i := 1; i < c.lab.opts.APIServers; i++ {
		if err := c.addServer(ctx, i); err != nil {
			return err
		}
	}

	if err := c.applyManifests(ctx); err != nil {
		return err
	}
	return c.remember(ctx)
}

// Addrs returns the addresses of the first API server on the underlay, IPv4 first.
func (c *Control) Addrs() []netip.Addr {
	return c.serverAddrs(0)
}

// serviceAddrs returns the first address of each service range. The service of the API servers has
// the first of these addresses.
func (c *Control) serviceAddrs() (out []netip.Addr) {
	for _, r := range c.lab.opts.Family.ServiceRanges() {
		out = append(out, r.Masked().Addr().Next())
	}
	return out
}

// ServerAddr returns the address of API server i in the endpoints of the service kubernetes. The
// first server is 0.
func (c *Control) ServerAddr(i int) netip.AddrPort {
	return netip.AddrPortFrom(c.serverAddrs(i)[0], APIPort)
}

// URL returns the URL by which nodes reach the first API server.
func (c *Control) URL() string {
	return "https://" + netip.AddrPortFrom(c.Addrs()[0], APIPort).String()
}

// Host returns the host of the control plane. After this call, no other lab uses the control plane,
// because the test may change the host.
func (c *Control) Host() *Host {
	c.host.shown.Store(true)
	return c.host
}

// Etcd returns the present process of etcd.
func (c *Control) Etcd() *Process { return c.etcd.Process }

func (c *Control) pki(name string) string { return filepath.Join(c.host.Dir, "pki", name) }

func (c *Control) makeCerts() error {
	if err := os.MkdirAll(c.pki(""), 0o700); err != nil {
		return err
	}
	a, err := authority.New(c.pki(""))
	if err != nil {
		return err
	}
	var servers []netip.Addr
	for i := range c.lab.opts.APIServers {
		servers = append(servers, c.serverAddrs(i)...)
	}
	return errors.Join(a.Server(append(servers, c.serviceAddrs()...)),
		a.Client("admin", "lab-admin", "system:masters"), a.ServiceAccountKey())
}

func (c *Control) startAPIServer(ctx context.Context) (err error) {
	c.APIServer, err = c.runAPIServer(ctx, c.host, 0, c.flagsOf(0))
	return err
}

// flagsOf returns the flags of Options.APIServerFlags for API server i.
func (c *Control) flagsOf(i int) []string {
	if c.lab.opts.APIServerFlags == nil {
		return nil
	}
	return c.lab.opts.APIServerFlags(i)
}

// runAPIServer starts API server i on host h. flags follow the flags of the lab.
func (c *Control) runAPIServer(ctx context.Context, h *Host, i int,
	flags []string) (*Process, error) {
	store := c.etcdURL()
	if i == 0 {
		store = fmt.Sprintf("http://127.0.0.1:%d", etcd.Port)
	}
	// Starting API servers takes a third of the CPU time of tests on labs. GOGC=400 saves 8 % of the
	// CPU time of all tests, and the heap of a lab is small.
	own := apiserver.Config{Etcd: store, Addr: c.serverAddrs(i)[0], Family: c.lab.opts.Family,
		PKI: c.pki("")}.Flags()
	return h.StartEnv(ctx, []string{"GOGC=400"}, c.lab.Program("kube-apiserver"),
		append(own, flags...)...)
}

// connect sets Admin.
func (c *Control) connect() (err error) {
	loopback := netip.IPv6Loopback()
	if c.lab.opts.Family.V4() {
		loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	c.Admin, err = apiserver.Connect(loopback, c.pki(""), c.dial)
	return err
}

// dial connects from within the control plane's host.
func (c *Control) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var conn net.Conn
	err := c.host.Do(func() error {
		var err error
		conn, err = (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, network, addr)
		return err
	})
	return conn, err
}

// WaitReady waits until the API server reports that it is ready.
func (c *Control) WaitReady(ctx context.Context) error {
	err := Until(ctx, 4*time.Minute, func() error {
		if !c.APIServer.Running() {
			return Stop(fmt.Errorf("it has ended: %s", c.APIServer.Tail()))
		}
		b, err := c.Client.Discovery().RESTClient().Get().AbsPath("/readyz").Timeout(
			5 * time.Second).DoRaw(ctx)
		if err == nil && strings.TrimSpace(string(b)) != "ok" {
			err = fmt.Errorf("readyz: %s", b)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("wait for the API server: %w", err)
	}
	return nil
}

// StopAPIServer kills the first API server. StartAPIServer starts it again, with the same data.
func (c *Control) StopAPIServer(ctx context.Context) error { return c.APIServer.Kill(ctx) }

// StartAPIServer starts the first API server again and waits until it is ready.
func (c *Control) StartAPIServer(ctx context.Context) error {
	p, err := c.APIServer.Restart(ctx)
	if err != nil {
		return err
	}
	c.APIServer = p
	return c.WaitReady(ctx)
}
