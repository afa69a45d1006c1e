package lab

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/lab/addressplan"
)

// serverAddrs are the underlay addresses of an API server, the first of which is 0.
func (c *Control) serverAddrs(i int) []netip.Addr {
	return addressplan.AddrsOf(c.lab.opts.Family.Underlay(addressplan.ControlHost + byte(i)))
}

// etcdURL is how further API servers reach the etcd of the first.
func (c *Control) etcdURL() string {
	return "http://" + netip.AddrPortFrom(c.Addrs()[0], etcdPort).String()
}

// addServer starts another API server in a host of its own and waits until it counts itself among
// the endpoints of the API's service.
func (c *Control) addServer(ctx context.Context, i int) error {
	name := fmt.Sprintf("control-%d", i+1)
	h, err := c.lab.newHost(ctx, name)
	if err != nil {
		return err
	}

	c.lab.mu.Lock()
	c.lab.hosts = append(c.lab.hosts, h)
	c.lab.mu.Unlock()
	s := &Server{Host: h}
	c.Servers = append(c.Servers, s)
	if err := c.lab.plug(ctx, h, name, "eth0",
		c.lab.opts.Family.Underlay(addressplan.ControlHost+byte(i))); err != nil {
		return err
	}

	if s.Process, err = c.runAPIServer(ctx, h, i, c.flagsOf(i)); err != nil {
		return err
	}
	return c.waitListed(ctx, i)
}

// waitListed waits until an API server has written itself into the endpoints of the API's service.
func (c *Control) waitListed(ctx context.Context, i int) error {
	s := c.Servers[i]
	err := Until(ctx, 90*time.Second, func() error {
		if !s.Process.Running() {
			return Stop(fmt.Errorf("it has ended: %s", s.Process.Tail()))
		}
		return c.listed(ctx, c.serverAddrs(i)[0])
	})
	if err != nil {
		return fmt.Errorf("wait for API server %d: %w", i+1, err)
	}
	return nil
}

// listed returns nil when an address is among the endpoints of the API's service.
func (c *Control) listed(ctx context.Context, addr netip.Addr) error {
	all, err := c.Client.DiscoveryV1().EndpointSlices("default").List(ctx,
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=kubernetes"})
	if err != nil {
		return err
	}
	for _, s := range all.Items {
		for _, e := range s.Endpoints {
			for _, a := range e.Addresses {
				if a == addr.String() {
					return nil
				}
			}
		}
	}
	return fmt.Errorf("%s is not an endpoint of the API's service", addr)
}

// Server is an API server on a host of its own. The first one's host has etcd, too.
type Server struct {
	*Host
	// Process is the process that was started first; Control.APIServer is the first server's
	// current one.
	Process *Process
}
