package network_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// Pods can be added, removed and reached while the API server is down, and while a node's key
// changes.
func TestAPIServerAway(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{})
	pods := nodetest.EchoPods(ctx, t, l)
	nodetest.Meet(ctx, t, pods[0], pods[1])
	old, err := readKey(l.Nodes()[1])
	errtest.Must(t, err)

	t.Run("a node whose key changed", func(t *testing.T) { changeKey(ctx, t, l, pods) })
	t.Run("the API server away", func(t *testing.T) { apiAway(ctx, t, l, pods, 10*time.Second) })
	t.Run("the API server away for a minute", func(t *testing.T) {
		nettest.NeedLong(t, "a shorter time is covered")
		apiAway(ctx, t, l, pods, time.Minute)
	})
	t.Run("a new node joins", func(t *testing.T) {
		began := time.Now()
		n, err := l.AddNode(ctx)
		errtest.Must(t, err)
		nodetest.WaitReady(ctx, t, n)
		c := nodetest.EchoPod(ctx, t, n, "echo")

		for _, p := range pods {
			nodetest.Meet(ctx, t, p, c)
			talk(ctx, t, p, c)
		}

		t.Logf("%s joined and its pod talked to all %v after it was made", n.Name,
			time.Since(began).Round(time.Millisecond))
	})

	noSecrets(ctx, t, l, map[string][]byte{"node-2 before": old})
	nodetest.NoLeaks(t, l)
}

// changeKey removes the key of the second node and restarts its veild.
func changeKey(ctx context.Context, t *testing.T, l *lab.Lab, pods []*lab.Pod) {
	n1, n2 := l.Nodes()[0], l.Nodes()[1]
	began := time.Now()
	old := removeKey(ctx, t, n2)

	nodetest.WaitStatus(ctx, t, n1, 20*time.Second, func(s telemetry.Status) error {
		if len(s.Peers) != 1 || s.Peers[0].PublicKey == old {
			return fmt.Errorf("peers: %+v", s.Peers)
		}
		return nil
	})
	known := time.Since(began)
	nodetest.Meet(ctx, t, pods[0], pods[1])
	t.Logf("the peer knew the new key %v after the start with it, traffic was back both "+
		"ways after %v",
		known.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))

	if now := nodetest.NodeStatus(ctx, t, n2).Devices[0].PublicKey; now == old {
		t.Error("the device still has the old key")
	}

	talk(ctx, t, pods[0], pods[1])
}

// removeKey removes the key of a node and restarts its veild, which makes another key. It returns
// the former public key.
func removeKey(ctx context.Context, t *testing.T, n *lab.Node) (old wgkey.Public) {
	t.Helper()
	old = nodetest.NodeStatus(ctx, t, n).Devices[0].PublicKey
	nodetest.KillProgram(ctx, t, n, "veild")
	errtest.Must(t, os.Remove(n.Path(abi.KeyFile)))
	nodetest.StartProgram(ctx, t, n, "veild")
	return old
}

// apiAway stops the API server for at least the time away. Meanwhile it adds and removes pods on
// all nodes, and restarts veild.
func apiAway(ctx context.Context, t *testing.T, l *lab.Lab, pods []*lab.Pod, away time.Duration) {
	held := nodetest.Hold(ctx, t, pods[0], pods[1].Addr(true))
	errtest.Must(t, l.Control.StopAPIServer(ctx))

	began, rounds := time.Now(), 0
	for ; rounds < 2 || time.Since(began) < away; rounds++ {
		var fresh []*lab.Pod
		for _, n := range l.Nodes() {
			p, err := n.AddPod(ctx, fmt.Sprintf("fresh-%d", rounds), lab.PodOptions{})
			if err != nil {
				t.Fatalf("ADD on %s without the API server: %v", n.Name, err)
			}
			nodetest.EchoAt(ctx, t, p)
			fresh = append(fresh, p)
		}

		talk(ctx, t, fresh[0], fresh[1])
		restartVeild(ctx, t, l.Nodes()[rounds%2])
		talk(ctx, t, fresh[0], pods[1])

		for _, p := range fresh {
			if err := p.Del(ctx); err != nil {
				t.Fatalf("DEL of %s without the API server: %v", p.ID, err)
			}
		}

		for _, n := range l.Nodes() {
			if s := nodetest.NodeStatus(ctx, t, n); len(s.Peers) != 1 || s.Peers[0].Device == "" {
				t.Errorf("peers of %s: %+v", n.Name, s.Peers)
			}
		}
	}

	gone := time.Since(began)
	errtest.Must(t, l.Control.StartAPIServer(ctx))

	talk(ctx, t, pods[0], pods[1])
	var h traffic.Held
	if err := held.Result(ctx, &h); err != nil {
		t.Errorf("a connection did not live through the API server's absence: %v", err)
	}

	t.Logf("API server away for %v: %d rounds of ADD, restart of veild and DEL; one connection "+
		"with %d records, longest gap %.0f ms",
		gone.Round(time.Second), rounds, h.Records, h.MaxGapMillis)
}

// restartVeild kills veild, starts it again, and waits until it reports no problem.
func restartVeild(ctx context.Context, t *testing.T, n *lab.Node) {
	t.Helper()
	nodetest.KillProgram(ctx, t, n, "veild")
	nodetest.StartProgram(ctx, t, n, "veild")
	applied(ctx, t, n)
}

// nodeMetrics scrapes a node's veild.
func nodeMetrics(ctx context.Context, t *testing.T, n *lab.Node) string {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
			return conn, n.Do(func() error {
				conn, err = (&net.Dialer{}).DialContext(ctx, network, addr)
				return err
			})
		}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet,
		"http://"+abi.MetricsAddress+"/metrics", nil)
	errtest.Must(t, err)
	resp, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Do(req)
	if err != nil {
		t.Fatalf("metrics of %s: %v", n.Name, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("metrics of %s: %s, %v", n.Name, resp.Status, err)
	}
	return string(b)
}
