package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab/addressplan"
	"github.com/kubeveil/kubeveil/e2e/lab/buildtree"
	"github.com/kubeveil/kubeveil/e2e/lab/etcd"
)

// serverAddrs returns the underlay addresses of API server i, IPv4 first. The first server is 0.
func (c *Control) serverAddrs(i int) []netip.Addr {
	return addressplan.AddrsOf(c.lab.opts.Family.Underlay(c.lab.serverByte(i)))
}

// etcdURL returns the URL by which API servers on other hosts reach etcd.
func (c *Control) etcdURL() string {
	return "http://" + netip.AddrPortFrom(c.Addrs()[0], etcd.Port).String()
}

// addServer starts API server i in a new host, and waits until it is among the endpoints of the
// service kubernetes.
func (c *Control) addServer(ctx context.Context, i int) error {
	h, err := c.lab.AddHost(ctx, c.lab.serverName(i), c.lab.serverByte(i))
	if err != nil {
		return err
	}
	s := &Server{Host: h}
	c.Servers = append(c.Servers, s)
	if s.Process, err = c.runAPIServer(ctx, h, i, c.flagsOf(i)); err != nil {
		return err
	}
	return c.waitListed(ctx, i)
}

// waitListed waits until API server i has added itself to the endpoints of the service kubernetes.
func (c *Control) waitListed(ctx context.Context, i int) error {
	s := c.Servers[i]
	err := Until(ctx, 90*time.Second, func() error {
		if !s.Process.Running() {
			return Stop(fmt.Errorf("it has ended: %s", s.Process.Tail()))
		}
		return c.objects().Listed(ctx, c.serverAddrs(i)[0])
	})
	if err != nil {
		return fmt.Errorf("wait for API server %d: %w", i+1, err)
	}
	return nil
}

// Server is an API server and its host. The host of the first server also has etcd.
type Server struct {
	*Host
	// Process is the process of the API server. For the first server, Control.APIServer is the
	// present process, and Process may be an earlier one.
	Process *Process
}

// startEtcd starts etcd. If there are several API servers, it also listens on the underlay.
func (c *Control) startEtcd(ctx context.Context) error {
	root, err := buildtree.Root()
	if err != nil {
		return err
	}
	var urls []string
	if c.lab.opts.APIServers > 1 {
		urls = []string{c.etcdURL()}
	}
	program := "out/tools/etcd"
	if c.lab.opts.Streams {
		program = buildtree.StreamingEtcd
		if _, err := os.Stat(filepath.Join(root, program)); err != nil {
			return fmt.Errorf("run `hack/build-kubernetes.sh etcd-streams` first: %w", err)
		}
	}
	c.etcd = &etcd.Server{Host: c.host.Host, Dial: c.dial}
	return c.etcd.Start(ctx, filepath.Join(root, program), urls...)
}

// BackUpEtcd keeps a copy of etcd's data. It restarts etcd and waits until the API server is ready.
func (c *Control) BackUpEtcd(ctx context.Context) error {
	return errors.Join(c.etcd.BackUp(ctx), c.WaitReady(ctx))
}

// RestoreEtcd stops the API server and etcd, restores the data of BackUpEtcd, starts both and waits
// until they are ready. Later writes then get revision numbers that etcd had already used. It calls
// away, if not nil, before it starts the API server.
func (c *Control) RestoreEtcd(ctx context.Context, away func()) error {
	if err := c.StopAPIServer(ctx); err != nil {
		return err
	}
	if err := c.etcd.Restore(ctx); err != nil {
		return err
	}
	if away != nil {
		away()
	}
	return c.StartAPIServer(ctx)
}

// CopyObject calls etcd.Server.CopyObject for the lab's etcd.
func (c *Control) CopyObject(ctx context.Context, prefix, name string, copies ...string) error {
	return c.etcd.CopyObject(ctx, prefix, name, copies...)
}

// DeleteObjects calls etcd.Server.DeleteObjects for the lab's etcd.
func (c *Control) DeleteObjects(ctx context.Context, prefix string, names ...string) error {
	return c.etcd.DeleteObjects(ctx, prefix, names...)
}

// CompactEtcd calls etcd.Server.Compact for the lab's etcd.
func (c *Control) CompactEtcd(ctx context.Context) error { return c.etcd.Compact(ctx) }
