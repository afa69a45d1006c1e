package lab_test

import (
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
)

func TestZZ(t *testing.T) {
	ctx, l := newLab(t, lab.Options{})
	pods := echoPods(ctx, t, l)
	a, b := pods[0], pods[1]
	meet(ctx, t, a, b)
	n1, n2 := l.Nodes()[0], l.Nodes()[1]
	lab.Echo(ctx, n1)
	lab.Echo(ctx, n2)
	for range 2 {
		for _, x := range []struct {
			name string
			from lab.Place
			to   lab.Exchange
		}{
			{"n2 a 4 tcp", n2, lab.Exchange{To: a.Addr(false)}},
			{"n2 a 6 tcp", n2, lab.Exchange{To: a.Addr(true)}},
			{"n2 a 4 udp", n2, lab.Exchange{To: a.Addr(false), Proto: "udp"}},
			{"n2 a 6 udp", n2, lab.Exchange{To: a.Addr(true), Proto: "udp"}},
			{"n1 b 4 tcp", n1, lab.Exchange{To: b.Addr(false)}},
			{"n1 b 6 tcp", n1, lab.Exchange{To: b.Addr(true)}},
			{"a n2 4 tcp", a, lab.Exchange{To: n2.Addrs[0]}},
			{"a n2 6 tcp", a, lab.Exchange{To: n2.Addrs[1]}},
			{"a n2 4 udp", a, lab.Exchange{To: n2.Addrs[0], Proto: "udp"}},
			{"a n1 4 udp", a, lab.Exchange{To: n1.Addrs[0], Proto: "udp"}},
		} {
			x.to.Timeout = 2 * time.Second
			_, err := lab.Send(ctx, x.from, x.to)
			t.Log(x.name, err)
		}
	}
	for _, n := range l.Nodes() {
		for _, c := range []string{"ip rule", "ip route show table all", "ip route show table 30309", "cat /proc/sys/net/ipv4/conf/veil0/rp_filter /proc/sys/net/ipv4/conf/all/rp_filter /proc/sys/net/ipv4/conf/eth0/rp_filter", "nstat -az TcpExtIPReversePathFilter", "nft list ruleset"} {
			out, err := n.Exec(ctx, "bash", "-c", c)
			t.Logf("%s %s: %v\n%s", n.Name, c, err, out)
		}
	}
	noLeaks(t, l)
}
