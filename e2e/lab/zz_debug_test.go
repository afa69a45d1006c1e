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
	for i := range 2 {
		if i == 1 {
			for _, n := range l.Nodes() {
				if err := n.IP(ctx, "address add 169.254.1.2/32 dev veil0 scope host"); err != nil {
					t.Error(err)
				}
			}
		}
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
	noLeaks(t, l)
}
