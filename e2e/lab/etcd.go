package lab

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab/buildtree"
)

// etcdData is etcd's directory. It is on tmpfs: writes need no disk, and go with the lab.
const etcdData = "/run/etcd"

func (c *Control) startEtcd(ctx context.Context) error {
	root, err := buildtree.Root()
	if err != nil {
		return err
	}
	own, urls := fmt.Sprintf("http://127.0.0.1:%d", etcdPort), ""
	if c.lab.opts.APIServers > 1 {
		urls = "," + c.etcdURL()
	}

	c.etcd, err = c.host.Start(ctx, filepath.Join(root, "out/tools/etcd"), "--data-dir="+etcdData,
		"--listen-client-urls="+own+urls, "--advertise-client-urls="+own,
		"--listen-peer-urls=http://127.0.0.1:2380", "--logger=zap", "--log-level=warn",
		// It is alone, and by its defaults would wait up to a second before it elects itself.
		"--heartbeat-interval=20", "--election-timeout=100")
	if err != nil {
		return err
	}
	return c.waitEtcd(ctx)
}

// waitEtcd waits until etcd can be connected to.
func (c *Control) waitEtcd(ctx context.Context) error {
	err := Until(ctx, 30*time.Second, func() error {
		if !c.etcd.Running() {
			return Stop(fmt.Errorf("etcd has ended: %s", c.etcd.Tail()))
		}
		conn, err := c.dial(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", etcdPort))
		if err != nil {
			return err
		}
		return conn.Close()
	})
	if err != nil {
		return fmt.Errorf("wait for etcd: %w", err)
	}
	return nil
}

// BackUpEtcd keeps a copy of etcd's data. etcd is away for that moment.
func (c *Control) BackUpEtcd(ctx context.Context) error {
	if err := c.etcd.Kill(ctx); err != nil {
		return err
	}
	_, err := c.host.Exec(ctx, "cp", "-a", etcdData, etcdData+".backup")
	return errors.Join(err, c.restartEtcd(ctx), c.WaitReady(ctx))
}

// RestoreEtcd stops the API server and etcd, puts back the data of BackUpEtcd, starts both and waits
// until they are ready. Revisions are then used again.
func (c *Control) RestoreEtcd(ctx context.Context) error {
	if err := errors.Join(c.StopAPIServer(ctx), c.etcd.Kill(ctx)); err != nil {
		return err
	}
	if _, err := c.host.Exec(ctx, "rm", "-rf", etcdData); err != nil {
		return err
	}
	if _, err := c.host.Exec(ctx, "cp", "-a", etcdData+".backup", etcdData); err != nil {
		return err
	}
	if err := c.restartEtcd(ctx); err != nil {
		return err
	}
	return c.StartAPIServer(ctx)
}

func (c *Control) restartEtcd(ctx context.Context) error {
	p, err := c.etcd.Restart(ctx)
	if err != nil {
		return err
	}
	c.etcd = p
	return c.waitEtcd(ctx)
}
