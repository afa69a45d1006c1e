package link

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/service/servicetest"
)

// opened returns the connections of Opened, as text.
func (r *routed) opened(t *testing.T, pods map[string]string) (out []string) {
	t.Helper()
	links := map[netip.Addr]string{}
	for addr, link := range pods {
		links[netip.MustParseAddr(addr)] = link
	}
	r.host.Run(t, func() error {
		found, err := r.Opened(links)
		for _, o := range found {
			out = append(out, o.Client.Addr().String()+" > "+o.Server.String())
		}
		return err
	})
	slices.Sort(out)
	return out
}

// hold opens a connection that a test holds, and sends a line over it.
func hold(t *testing.T, ns *nettest.NS, to, port string) net.Conn {
	t.Helper()
	var c net.Conn
	ns.Run(t, func() (err error) {
		c, err = net.DialTimeout("tcp", net.JoinHostPort(to, port), servicetest.Patience)
		return err
	})
	t.Cleanup(func() { c.Close() })
	if _, err := servicetest.Converse(c); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestConnectionsOfTheFastPathAreRemembered(t *testing.T) {
	bothHooks(t, func(t *testing.T, withTCX bool) {
		r := newRouted(t, withTCX, true)
		pods := map[string]string{"198.18.1.5": "vpod1", "fd42:1::5": "vpod1", otherAt[0]: "vpod2",
			otherAt[1]: "vpod2"}
		for i, to := range otherAt {
			direct := hold(t, r.pod, to, "8080")
			open := []net.Conn{direct, hold(t, r.pod, clusterAt[i], "80"),
				hold(t, r.client, outsideAt[i], "80")}
			server := net.JoinHostPort(to, "8080")
			client := []string{"198.18.1.5", "fd42:1::5"}[i]
			outside := []string{"198.19.0.9", "fd42:9::9"}[i]
			want := []string{client + " > " + server, client + " > " + server,
				outside + " > " + server}
			slices.Sort(want)
			if got := r.opened(t, pods); !slices.Equal(got, want) {
				t.Errorf("opened %v, want %v", got, want)
			}

			// Another pod has the address now.
			other := map[string]string{to: "vpod2", client: "vpod2"}
			if got := r.opened(t, other); !slices.Equal(got, []string{outside + " > " + server}) {
				t.Errorf("opened %v, want the connections from outside", got)
			}
			if got := r.opened(t, map[string]string{to: "vpod1"}); len(got) > 0 {
				t.Errorf("opened %v, want none to another pod", got)
			}

			from := netip.MustParseAddrPort(direct.LocalAddr().String())
			r.host.Run(t, func() error {
				return r.ForgetOpened([]nl.Opened{{Client: from,
					Server: netip.MustParseAddrPort(server)}})
			})
			if got := r.opened(t, pods); len(got) != 2 {
				t.Errorf("opened %v, want one less", got)
			}
			for _, c := range open {
				c.Close()
			}
			nettest.Until(t, 5*time.Second, "closed connections are forgotten",
				func() bool { return len(r.opened(t, pods)) == 0 })
		}

		r.pod.Run(t, func() error {
			c, err := net.DialTimeout("tcp", net.JoinHostPort(otherAt[0], "81"),
				servicetest.Patience)
			if err == nil {
				return c.Close()
			}
			if !strings.Contains(err.Error(), "refused") {
				return err
			}
			return nil
		})
		if got := r.opened(t, pods); len(got) > 0 {
			t.Errorf("opened %v, want no refused connection", got)
		}
	})
}
