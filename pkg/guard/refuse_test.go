package guard

import (
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/guard/chains"
)

// Applications of a pod get an error at once, at each try, if a destination is refused. With ICMP
// errors alone, the kernel would send one every two seconds to each address.
func TestConnectionsOfPodsAreRefused(t *testing.T) {
	nettest.NeedProgram(t, "ip")
	nettest.NeedBPF(t)
	n := newNode(t, clsact)
	pod := n.addPod(t)
	n.Run(t, func() error {
		return nettest.Command("sh", "-ec", fmt.Sprintf(`for f in -4 -6; do
			ip $f rule add pref %d fwmark %#x/%#x lookup %d
			done
			ip -4 route add unreachable 198.18.9.0/24 table %[4]d; ip -6 route add unreachable fd42:1:0:9::/64 table %[4]d`,
			abi.RulePrefPod, abi.PodMark, abi.PodMark, abi.TablePod))
	})

	const port = "7780"
	listen := func(ns interface{ Do(func() error) error }, addr string) {
		err := ns.Do(func() error {
			l, err := net.Listen("tcp", net.JoinHostPort(addr, port))
			if err == nil {
				t.Cleanup(func() { l.Close() })
			}
			return err
		})
		errtest.Must(t, err)
	}

	dial := func(addr string) (err error) {
		t.Helper()
		pod.Do(func() error {
			var c net.Conn
			if c, err = net.DialTimeout("tcp", net.JoinHostPort(addr, port), patience); err == nil {
				c.Close()
			}
			return nil
		})
		return err
	}

	for _, f := range []struct{ name, nowhere, node string }{
		{"ipv4", "198.18.9.", "198.18.5.1"},
		{"ipv6", "fd42:1:0:9::", "fd42:1::1"},
	} {
		t.Run(f.name, func(t *testing.T) {
			began, before := time.Now(), n.counters(t)[chains.NoRoute]
			for i := range 25 {
				if err := dial(f.nowhere + fmt.Sprint(i+1)); !errors.Is(err, unix.ECONNREFUSED) {
					t.Fatalf("connection %d to where there is no route: %v, want a refusal", i, err)
				}
			}
			if took := time.Since(began); took > patience {
				t.Errorf("25 refusals took %s", took)
			}
			if counted := n.counters(t)[chains.NoRoute] - before; counted != 25 {
				t.Errorf("%d of 25 refusals are counted", counted)
			}
			listen(n, f.node)
			if err := dial(f.node); err != nil {
				t.Errorf("connection to the node itself: %v", err)
			}
		})
	}
}
