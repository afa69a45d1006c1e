package bench

import (
	"os"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/e2e/bench/cluster"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

func TestCheckMTUs(t *testing.T) {
	for name, tt := range map[string]struct {
		mtus    []int
		wantErr string
	}{
		"the usual":      {[]int{8896, 1500}, ""},
		"one":            {[]int{1500}, ""},
		"growing":        {[]int{1500, 8896}, "largest first"},
		"twice the same": {[]int{1500, 1500}, "largest first"},
		"too small":      {[]int{1200}, "is not an MTU"},
		"nothing":        {nil, "at least one"},
	} {
		t.Run(name, func(t *testing.T) {
			err := checkMTUs(tt.mtus)
			if (err == nil) != (tt.wantErr == "") ||
				err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("error %v, want %q", err, tt.wantErr)
			}
		})
	}
}

func TestCheckServicesOfMachines(t *testing.T) {
	for name, tt := range map[string]struct {
		config  cluster.Config
		wantErr string
	}{
		"kube-proxy":            {cluster.Config{ServiceProxy: "none", HostRouting: "kernel"}, ""},
		"services by Kubeveil":  {cluster.Config{ServiceProxy: "ebpf", NoReference: true}, ""},
		"with a reference":      {cluster.Config{ServiceProxy: "ebpf"}, "--no-reference"},
		"fast path, kube-proxy": {cluster.Config{HostRouting: "ebpf"}, "--host-routing ebpf"},
		"unknown":               {cluster.Config{ServiceProxy: "ipvs"}, "--service-proxy ipvs"},
	} {
		err := clusterArguments{Config: tt.config}.checkServices()
		if (err == nil) != (tt.wantErr == "") ||
			err != nil && !strings.Contains(err.Error(), tt.wantErr) {
			t.Errorf("%s: error %v, want %q", name, err, tt.wantErr)
		}
	}
}
