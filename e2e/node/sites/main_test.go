package sites_test

import (
	"os"
	"testing"

	"github.com/kubeveil/kubeveil/e2e/bench/site"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
)

func TestMain(m *testing.M) {
	// TestBenchmark starts servers, proxies and clients of the benchmark.
	if status, is := site.Child(); is {
		os.Exit(status)
	}
	os.Exit(nodetest.Main(m))
}
