package etcd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab/labhost"
)

// Port is the TCP port of etcd.
const Port = 2379

// dataDir is etcd's data directory in the host. It is on tmpfs, so it needs no disk and is removed
// with the host.
const dataDir = "/run/etcd"

// Server is etcd in a host. Its methods must not be called concurrently.
type Server struct {
	Host *labhost.Host
	// Dial connects to an address from within the host.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Process is the present process; Start, BackUp and Restore set it.
	Process *labhost.Process
}

// Start starts the program and waits until it accepts connections. It listens on loopback and at
// urls.
func (s *Server) Start(ctx context.Context, program string, urls ...string) (err error) {
	own := fmt.Sprintf("http://127.0.0.1:%d", Port)
	s.Process, err = s.Host.Start(ctx, program, "--data-dir="+dataDir,
		"--listen-client-urls="+strings.Join(append([]string{own}, urls...), ","),
		"--advertise-client-urls="+own, "--listen-peer-urls=http://127.0.0.1:2380",
		"--logger=zap", "--log-level=warn",
		// A million endpoints that are written several times need more than the default 2 GiB.
		"--quota-backend-bytes=8589934592",
		// A single etcd would by default wait up to a second before it elects itself. A shorter
		// interval takes more CPU while nothing happens: 20 ms take 1 % of a processor.
		"--heartbeat-interval=50", "--election-timeout=250")
	if err != nil {
		return err
	}
	return s.wait(ctx)
}

// wait waits until etcd accepts connections.
func (s *Server) wait(ctx context.Context) error {
	err := labhost.Until(ctx, 30*time.Second, func() error {
		if !s.Process.Running() {
			return labhost.Stop(fmt.Errorf("etcd has ended: %s", s.Process.Tail()))
		}
		conn, err := s.Dial(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", Port))
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

// BackUp keeps a copy of the data. It stops etcd meanwhile and starts it again.
func (s *Server) BackUp(ctx context.Context) error {
	if err := s.Process.Kill(ctx); err != nil {
		return err
	}
	_, err := s.Host.Exec(ctx, "cp", "-a", dataDir, dataDir+".backup")
	return errors.Join(err, s.restart(ctx))
}

// Restore replaces the data by the copy of BackUp, and restarts etcd. Later writes then get
// revision numbers that etcd had already used.
func (s *Server) Restore(ctx context.Context) error {
	if err := s.Process.Kill(ctx); err != nil {
		return err
	}
	if _, err := s.Host.Exec(ctx, "rm", "-rf", dataDir); err != nil {
		return err
	}
	if _, err := s.Host.Exec(ctx, "cp", "-a", dataDir+".backup", dataDir); err != nil {
		return err
	}
	return s.restart(ctx)
}

func (s *Server) restart(ctx context.Context) error {
	p, err := s.Process.Restart(ctx)
	if err != nil {
		return err
	}
	s.Process = p
	return s.wait(ctx)
}
