package telemetry

import "testing"

// Metrics show for each pod the connections that it opened, and for each namespace the objects that
// are left out of the table of services.
func TestSharesOfPodsAndNamespacesAreShown(t *testing.T) {
	got := gather(t, metricsOf(Status{
		Connections: &Connections{Limit: 100, Dropped: 7,
			Opened:  []PodConnections{{"shop/a", 120}, {"shop/b", 3}},
			Limited: []PodConnections{{"shop/a", 120}}},
		Services: &Services{LeftOut: []LeftOut{{"EndpointSlice", "evil", 4}, {"Service", "evil", 9}}},
	}))
	holds(t, got, []metric{
		{"kubeveil_pod_connections", "pod=shop/a", 120},
		{"kubeveil_pod_connections", "pod=shop/b", 3},
		{"kubeveil_pod_connections_limited", "pod=shop/a", 120},
		{"kubeveil_pod_connections_limit", "", 100},
		{"kubeveil_pod_connections_dropped_total", "", 7},
		{"kubeveil_service_objects_left_out", "kind=EndpointSlice,namespace=evil", 4},
		{"kubeveil_service_objects_left_out", "kind=Service,namespace=evil", 9},
	})
	if _, ok := value(got, "kubeveil_pod_connections_limited", "pod=shop/b"); ok {
		t.Error("a pod below the limit is shown as limited")
	}
}
