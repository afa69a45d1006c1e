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

// ReplaceServer restarts API server i with flags instead of the flags of Options. Like the kubelet
// for a static pod, it first sends SIGTERM and after 30 s SIGKILL. It returns when the server is
// ready and among the endpoints of the service kubernetes.
func (c *Control) ReplaceServer(ctx context.Context, i int, flags ...string) error {
	s := c.Servers[i]
	if i == 0 {
		s.Process = c.APIServer
	}
	if err := s.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	patient, cancel := context.WithTimeout(ctx, 30*time.Second)
	_ = s.Process.Wait(patient) // ignore the error, because SIGKILL follows
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

// RefuseNodes makes the API server appear dead to the nodes: it resets their connections and
// refuses new ones. The clients of Control still work. This is faster than StopAPIServer and
// StartAPIServer. begin false ends the fault.
func (c *Control) RefuseNodes(ctx context.Context, begin bool) error {
	in := fmt.Sprintf(`iifname "eth0" tcp dport %d reject with tcp reset`, APIPort)
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

// Blackhole drops the TCP packets that the host sends and receives on the underlay. The link stays
// up, and neighbours can still resolve the host's address. begin false ends the fault.
func (h *Host) Blackhole(ctx context.Context, begin bool) error {
	return h.filter(ctx, begin, `iifname "eth0" meta l4proto tcp drop`,
		`oifname "eth0" meta l4proto tcp drop`)
}

// CutEtcd resets the host's connections to etcd. An API server on the host then reports that it is
// not ready, but still answers requests that need no etcd. begin false ends the fault.
func (h *Host) CutEtcd(ctx context.Context, begin bool) error {
	return h.filter(ctx, begin, "", fmt.Sprintf("tcp dport %d reject with tcp reset", etcd.Port))
}

// filter replaces the host's fault rules by the rule in for packets that arrive and the rule out
// for packets that leave. "" means no rule. begin false only removes the present rules.
func (h *Host) filter(ctx context.Context, begin bool, in, out string) error {
	const table = "inet kubeveil_lab_fault"
	// Add the table first, because deleting a table that does not exist is an error.
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
