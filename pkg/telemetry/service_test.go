package telemetry

import (
	"net/netip"
	"testing"
	"time"
)

func TestServiceMetrics(t *testing.T) {
	s := busy()
	families := gather(t, metricsOf(s))
	for name := range families {
		if len(name) > 16 && name[:16] == "kubeveil_service" {
			t.Errorf("without a table of services there is %s", name)
		}
	}

	s.Services = &Services{
		Listed: true, Known: 4, Failures: 2, Problems: 1,
		Tables:     []ServiceTable{{Limit: LimitFrontends, Used: 7, Size: 100}},
		APIServers: []APIServer{{Addr: netip.MustParseAddrPort("198.18.0.2:6443"), Up: true}},
		Chosen:     []ServiceCount{{Where: "socket", What: "tcp", Count: 9}},
		Refused:    []ServiceCount{{Where: "packet", What: "no_backend", Count: 3}},
	}
	m := metricsOf(s)
	m.ObserveProgramming(2 * time.Millisecond)
	m.ObserveProgramming(time.Second)

	families = gather(t, m)
	holds(t, families, []metric{
		{"kubeveil_services", "", 4},
		{"kubeveil_services_listed", "", 1},
		{"kubeveil_service_table_entries", "table=frontends", 7},
		{"kubeveil_service_table_limit", "table=frontends", 100},
		{"kubeveil_service_connections_total", "protocol=tcp,where=socket", 9},
		{"kubeveil_service_refused_total", "reason=no_backend,where=packet", 3},
		{"kubeveil_service_table_errors_total", "", 2},
		{"kubeveil_service_problems", "", 1},
		{"kubeveil_api_server_up", "server=198.18.0.2:6443", 1},
	})

	if h := families["kubeveil_service_programming_duration_seconds"].GetMetric(); len(h) != 1 ||
		h[0].GetHistogram().GetSampleCount() != 2 {
		t.Errorf("programming was observed: %v", h)
	}
}
