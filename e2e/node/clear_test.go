package node_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/leak"
)

// starting bounds how many labs start at a time: an API server that starts keeps a processor busy
// for seconds, and what others measure meanwhile suffers.
var starting = make(chan struct{}, 2)

// newLab makes a lab that is removed at the end of the test, and a context for it. From here on the
// test runs beside others: labs cannot see each other, and most of their time is waiting.
func newLab(t *testing.T, opts lab.Options) (context.Context, *lab.Lab) {
	t.Helper()
	t.Parallel()
	starting <- struct{}{}
	defer func() { <-starting }()
	return aloneLab(t, opts)
}

// aloneLab is newLab for a test that runs while no other does.
func aloneLab(t *testing.T, opts lab.Options) (context.Context, *lab.Lab) {
	t.Helper()
	return longLab(t, opts, 6*time.Minute)
}

// longLab is aloneLab with another limit.
func longLab(t *testing.T, opts lab.Options, limit time.Duration) (context.Context, *lab.Lab) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	opts.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	l, err := lab.New(ctx, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return ctx, l
}

// talk lets two pods on two nodes exchange messages both ways by both protocols and all families.
func talk(ctx context.Context, t *testing.T, a, b *lab.Pod) {
	t.Helper()
	for _, pair := range [][2]*lab.Pod{{a, b}, {b, a}} {
		for _, to := range pair[1].Addrs {
			for _, proto := range []string{"tcp", "udp"} {
				for _, size := range []int{200, 1200} {
					if _, err := lab.Send(ctx, pair[0],
						lab.Exchange{Proto: proto, To: to, Size: size}); err != nil {
						t.Errorf("%s to %s over %s, %d bytes: %v", pair[0].ID, pair[1].ID, proto,
							size, err)
						between(ctx, t, pair[0], pair[1])
					}
				}
			}
		}
	}
}

// between logs what may have kept two pods from one another: what was dropped and why, what
// connection tracking knows, and the pods' neighbours.
func between(ctx context.Context, t *testing.T, pods ...*lab.Pod) {
	t.Helper()
	for _, p := range pods {
		out, err := p.Node.Exec(ctx, "sh", "-c",
			"nft list counters | grep -B1 'packets [1-9]'; grep dport=7000 "+
				"/proc/net/nf_conntrack; ip neigh; ip -s link show group "+
				fmt.Sprint(abi.PodGroup))
		t.Logf("%s: %v\n%s", p.Node.Name, err, out)
		out, err = p.Exec(ctx, "sh", "-c", "ip neigh; grep -h Udp /proc/net/snmp /proc/net/snmp6")
		t.Logf("%s: %v\n%s", p.ID, err, out)
	}
}

// echoPods makes a pod with an echo server on each node.
func echoPods(ctx context.Context, t *testing.T, l *lab.Lab) []*lab.Pod {
	t.Helper()
	var pods []*lab.Pod
	for _, n := range l.Nodes() {
		p := echoPod(ctx, t, n, "echo")
		pods = append(pods, p)
	}
	return pods
}

// The negative control: over a network that does not encrypt, the oracle sees it.
func TestOracleSeesTheClearNetwork(t *testing.T) {
	t.Parallel()
	for _, family := range []lab.Family{lab.IPv4, lab.IPv6, lab.Dual} {
		t.Run(string(family), func(t *testing.T) {
			ctx, l := newLab(t, lab.Options{Network: lab.Clear, Family: family})
			pods := echoPods(ctx, t, l)
			talk(ctx, t, pods[0], pods[1])
			result, err := l.Finish()
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d frames, %d plaintext: %v", result.Frames, result.Plaintext, result.Kinds)
			if result.Dropped != 0 || result.Kinds[leak.LeakCanary] == 0 ||
				result.Kinds[leak.LeakAddress] == 0 {
				t.Errorf("the oracle saw no leak in clear traffic: %+v", result)
			}
			if result.Err() == nil {
				t.Error("a leak is no error")
			}
		})
	}
}
