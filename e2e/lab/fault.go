package lab

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/e2e/lab/etcd"
	"github.com/kubeveil/kubeveil/internal/sockdiag"
)

// ServerHost returns the host on which an API server runs.
func (c *Control) ServerHost(i int) *Host { return c.Servers[i].Host }

// ReplaceServer ends API server i as the kubelet ends a static pod, with SIGTERM and 30 s later
// with SIGKILL, and starts it with flags in place of the flags of Options. It returns when the
// server is ready and among the endpoints of the API's service.
func (c *Control) ReplaceServer(ctx context.Context, i int, flags ...string) error {
	s := c.Servers[i]
	if i == 0 {
		s.Process = c.APIServer
	}
	if err := s.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	patient, cancel := context.WithTimeout(ctx, 30*time.Second)
	_ = s.Process.Wait(patient) // its status does not matter: SIGKILL follows
	cancel()
	if err := s.Process.Kill(ctx); err != nil {
		return err
	}

	p, err := c.runAPIServer(ctx, s.Host, i, flags)
	if err != nil {
		return err
	}
	s.Process = p
	if i == 0 {
		c.APIServer = p
		if err := c.WaitReady(ctx); err != nil {
			return err
		}
	}
	return c.waitListed(ctx, i)
}

// RefuseNodes ends the nodes' connections to the API server and refuses new ones, as if it had been
// killed, or ends that. The clients of Control go on. It spares the start after StopAPIServer.
func (c *Control) RefuseNodes(ctx context.Context, begin bool) error {
	in := fmt.Sprintf(`iifname "eth0" tcp dport %d reject with tcp reset`, apiPort)
	err := c.host.filter(ctx, begin, in, "")
	if err != nil || !begin {
		return err
	}
	return c.host.Do(func() error {
		_, err := sockdiag.CloseIf(unix.IPPROTO_TCP,
			func(s sockdiag.Socket) bool { return !s.Remote.Addr().IsLoopback() })
		return err
	})
}

// Blackhole drops what the host sends and receives over TCP on the underlay, or ends that. Its link
// stays up, and its neighbours still resolve its address.
func (h *Host) Blackhole(ctx context.Context, begin bool) error {
	return h.filter(ctx, begin, `iifname "eth0" meta l4proto tcp drop`,
		`oifname "eth0" meta l4proto tcp drop`)
}

// CutEtcd resets the host's connections to etcd, or ends that. The readiness of an API server there
// fails then, while what needs no etcd works.
func (h *Host) CutEtcd(ctx context.Context, begin bool) error {
	return h.filter(ctx, begin, "", fmt.Sprintf("tcp dport %d reject with tcp reset", etcd.Port))
}

// filter adds a rule each for packets that arrive and leave, or takes them away again; an empty
// one is left out.
func (h *Host) filter(ctx context.Context, begin bool, in, out string) error {
	const table = "inet kubeveil_lab_fault"
	// Added first: a table that is not there cannot be deleted.
	text := "add table " + table + "; delete table " + table
	if begin {
		text += "; add table " + table
		for _, c := range []struct{ hook, rule string }{{"input", in}, {"output", out}} {
			if c.rule != "" {
				text += fmt.Sprintf("; add chain %[1]s %[2]s { type filter hook %[2]s priority 0; }"+
					"; add rule %[1]s %[2]s %[3]s", table, c.hook, c.rule)
			}
		}
	}
	h.filtered.Store(begin)
	_, err := h.Exec(ctx, "nft", text)
	return err
}
