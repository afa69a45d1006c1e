package sites_test

import (
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/site"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

// A short run of the benchmark e2e/bench/site measures each lane: a service of another cluster, in
// clear, and through pairs of proxies. It proves that the link of Kubeveil is encrypted.
func TestBenchmark(t *testing.T) {
	nettest.NeedLong(t, "it only tries the measurements")
	t.Parallel()
	nodetest.WaitTurn(t)
	rep, err := site.Run(t.Context(), site.RunConfig{
		Choice: suite.Choice{Rounds: 1, Seed: 1, Root: "../../..", Progress: t.Logf,
			Parts: []string{"requests", "connections", "memory"}},
		Sample: 200 * time.Millisecond, Rates: []int{100}, Connections: []int{4}, Held: 4,
		HAProxy: nettest.NeedProgram(t, "haproxy")})
	errtest.Must(t, err)
	errtest.Check(t, rep.Result.Validate())

	for _, name := range []string{"requests_100_4_engine", "requests_100_4_haproxy",
		"requests_100_4_go", "requests_100_4_added", "requests_100_4_added_processor",
		"requests_100_4_engine_again_p99", "connections_new_engine_to_pair",
		"connections_fixed_added_processor"} {
		if c := rep.Result.Find(name, 0); c == nil || c.Ours.Median <= 0 || c.Base == nil {
			t.Errorf("%s: %+v", name, c)
		}
	}
	for _, name := range []string{"memory_engine", "memory_haproxy", "memory_go"} {
		if rep.Result.Find(name, 0) == nil {
			t.Errorf("%s is not measured", name)
		}
	}
	for _, g := range rep.Result.Gates {
		if strings.HasPrefix(g.Name, "part ") {
			t.Errorf("%s: %s", g.Name, g.Got)
		}
	}
	if l := rep.Result.Leaks; l == nil || l.Frames == 0 || l.ControlPlaintext == 0 {
		t.Errorf("leak oracles: %+v", l)
	}
}
