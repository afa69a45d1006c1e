package service

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

const (
	// kubeProxy is the path at which hack/build-kubernetes.sh installs kube-proxy.
	kubeProxy = "../../../out/bin/kube-proxy"
	// noHAProxy is the path of some other program, because no test starts haproxy.
	noHAProxy = "true"
)

// TestRun measures some quantities of part pod for a second, with small tables, and checks that
// nothing is left behind.
func TestRun(t *testing.T) {
	nettest.NeedLong(t, "it tries the measurements; TestInterruptedRun does so once")
	nettest.NeedRoot(t)
	nettest.NeedBPF(t)
	for _, p := range needed {
		nettest.NeedProgram(t, p[0])
	}

	o := RunConfig{
		Choice: suite.Choice{Rounds: 1, Seed: 1, Parts: []string{partPod, partCost}, Root: ".",
			Progress: t.Logf},
		Turns: 1, Slower: 1, Sample: time.Second, Sizes: []int{4}, HAProxy: noHAProxy,
		KubeProxy: nettest.NeedProgram(t, kubeProxy), only: []string{qCPS, qCRRLatency, qRTT,
			qDatagram, qLoose},
	}
	rep, err := Run(t.Context(), o)
	errtest.Must(t, err)
	errtest.Check(t, rep.Result.Validate())

	for _, name := range []string{
		"pod_connections_to_direct", "pod_connections_to_nftables", "pod_connections_to_iptables",
		"pod_connections_nftables_to_direct",
		"pod_connect_request_response_latency_to_direct",
		"pod_connect_request_response_latency_to_direct_p99",
		"pod_connect_request_response_latency_to_direct_processor",
		"pod_round_trip_to_nftables_least", "pod_datagram_latency_to_direct",
		"pod_loose_datagram_latency_to_nftables_processor",
		"pod_connections_to_guarded", "pod_connections_to_guarded_nftables",
		"pod_connections_control_to_guarded_nftables_processor", "cost_pod_service_connect4_4_services",
		"cost_pod_service_pod_in_4_services",
	} {
		c := rep.Result.Find(name, 0)
		if c == nil || c.Ours.Median <= 0 {
			t.Errorf("%s: %+v", name, c)
		}
		if rep.Labels[name] == "" {
			t.Errorf("%s has no label", name)
		}
	}

	for _, g := range rep.Result.Gates {
		if strings.HasPrefix(g.Name, "part ") {
			t.Errorf("%s: %s", g.Name, g.Got)
		}
	}

	nothingLeft(t)
}

// TestInterruptedRun cancels a run. The result must have what was measured until then, and nothing
// may be left behind.
func TestInterruptedRun(t *testing.T) {
	nettest.NeedRoot(t)
	nettest.NeedBPF(t)
	for _, p := range needed {
		nettest.NeedProgram(t, p[0])
	}

	ctx, cancel := context.WithCancel(t.Context())
	var canceled time.Time
	o := RunConfig{
		Choice: suite.Choice{Rounds: 99, Seed: 1, Parts: []string{partPod}, Root: ".",
			Progress: func(format string, args ...any) {
				t.Logf(format, args...)
				if strings.HasPrefix(format, "round") && ctx.Err() == nil {
					canceled = time.Now()
					cancel()
				}
			}},
		Turns: 1, Slower: 1, Sample: time.Second, Sizes: []int{4}, HAProxy: noHAProxy,
		KubeProxy: nettest.NeedProgram(t, kubeProxy), only: []string{qCRRLatency},
	}

	rep, err := Run(ctx, o)
	if err == nil || !strings.Contains(err.Error(), "canceled") {
		t.Errorf("error %v, want the error of the context", err)
	}
	if took := time.Since(canceled); took > time.Minute {
		t.Errorf("it ended %v after it was canceled", took)
	}
	errtest.Check(t, rep.Result.Validate())

	for _, name := range []string{"pod_connect_request_response_latency_to_direct",
		"pod_connect_request_response_latency_to_nftables_processor"} {
		if c := rep.Result.Find(name, 0); c == nil || c.Ours.N != 1 {
			t.Errorf("%s: %+v, want one round", name, c)
		}
	}

	nothingLeft(t)
}

// nothingLeft checks that no cgroups and files are left. The leak check of TestMain finds processes
// and descriptors.
func nothingLeft(t *testing.T) {
	t.Helper()
	if left := own.Left(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
