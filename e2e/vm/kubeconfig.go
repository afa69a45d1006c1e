package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubeveil/kubeveil/e2e/lab"
)

// Kubeconfig returns the path of a kubeconfig of the cluster's administrator that works outside of
// the lab's namespaces, on this machine and while the cluster runs.
func (c *Cluster) Kubeconfig() string { return c.file("kubeconfig") }

// forwardAPI forwards a port of loopback to the API server, and writes the kubeconfig that names
// the port.
func (c *Cluster) forwardAPI(ctx context.Context) error {
	config, err := clientcmd.LoadFromFile(c.Control.Path(superAdmin))
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("forward the API server: %w", err)
	}
	c.forward = listener
	go c.serveForward(listener)
	for _, cluster := range config.Clusters {
		cluster.Server = "https://" + listener.Addr().String()
		cluster.TLSServerName = c.apiAddr().String()
	}
	return clientcmd.WriteToFile(*config, c.Kubeconfig())
}

func (c *Cluster) serveForward(listener net.Listener) {
	for {
		outer, err := listener.Accept()
		if err != nil {
			return // closed
		}
		go func() {
			if err := c.forwardOne(outer); err != nil {
				c.log.Debug("forward to the API server", "err", err)
			}
		}()
	}
}

// forwardOne forwards one connection until both directions have ended.
func (c *Cluster) forwardOne(outer net.Conn) error {
	defer outer.Close()
	var inner net.Conn
	err := c.Control.Do(func() error {
		var err error
		inner, err = net.Dial("tcp", net.JoinHostPort(c.apiAddr().String(),
			fmt.Sprint(lab.APIPort)))
		return err
	})
	if err != nil {
		return err
	}
	defer inner.Close()
	var both sync.WaitGroup
	var errs [2]error
	carry := func(i int, to, from net.Conn) {
		_, errs[i] = io.Copy(to, from)
		errs[i] = errors.Join(errs[i], to.(*net.TCPConn).CloseWrite())
	}
	both.Go(func() { carry(0, inner, outer) })
	both.Go(func() { carry(1, outer, inner) })
	both.Wait()
	return errors.Join(errs[:]...)
}
