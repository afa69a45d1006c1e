package link

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/service/servicetest"
)

// opened returns the connections of Opened, as text.
func (r *routed) opened(t *testing.T) (out []string) {
	t.Helper()
	r.host.Run(t, func() error {
		found, err := r.Opened()
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
	errtest.Must(t, errtest.Of(servicetest.Converse(c)))
	return c
}

func TestConnectionsOfTheFastPathAreRemembered(t *testing.T) {
	bothHooks(t, func(t *testing.T, withTCX bool) {
		r := newRouted(t, withTCX, true)
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
			if got := r.opened(t); !slices.Equal(got, want) {
				t.Errorf("opened %v, want %v", got, want)
			}

			from := netip.MustParseAddrPort(direct.LocalAddr().String())
			r.forgetOpened([]nl.Opened{{Client: from, Server: netip.MustParseAddrPort(server)}})
			if got := r.opened(t); len(got) != 2 {
				t.Errorf("opened %v, want one less", got)
			}
			for _, c := range open {
				c.Close()
			}
			nettest.Until(t, 5*time.Second, "closed connections are forgotten",
				func() bool { return len(r.opened(t)) == 0 })
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
		if got := r.opened(t); len(got) > 0 {
			t.Errorf("opened %v, want no refused connection", got)
		}

		// Another pod may get the address of a pod whose link is gone.
		c := hold(t, r.pod, otherAt[0], "8080")
		r.ip(t, "link del vpod2")
		if got := r.opened(t); len(got) > 0 {
			t.Errorf("opened %v, want none to a pod that is gone", got)
		}
		c.Close()
	})
}

// Connections from outside and between pods go on when host routing ends, and when it begins again:
// conntrack gets them.
func TestConnectionsGoOnWhenHostRoutingEnds(t *testing.T) {
	bothHooks(t, func(t *testing.T, withTCX bool) {
		r := newRecorded(t, withTCX, true)
		r.nft(t, seeAll)
		var open []flow
		for i, to := range otherAt {
			for _, c := range []net.Conn{hold(t, r.pod, to, "8080"), hold(t, r.client, outsideAt[i], "80"),
				r.datagrams(t, r.client, outsideAt[i])} {
				source, err := servicetest.Converse(c)
				errtest.Must(t, err)
				open = append(open, flow{c, source})
			}
		}
		r.expectSeen(t, "with host routing", false)
		r.reload(t, false)
		r.expectRoutes(t, "without it", map[string]uint8{"vpod1": 0, "vpod2": 0})
		expectGoOn(t, "without it", open)
		r.expectSeen(t, "without it", true)
		r.reload(t, true)
		expectGoOn(t, "with it again", open)
	})
}

// datagrams returns a UDP socket that is connected to a service.
func (r *routed) datagrams(t *testing.T, ns *nettest.NS, to string) (c net.Conn) {
	t.Helper()
	ns.Run(t, func() (err error) {
		c, err = net.DialTimeout("udp", net.JoinHostPort(to, "53"), servicetest.Patience)
		return err
	})
	t.Cleanup(func() { c.Close() })
	return c
}
