package service

import (
	"net/netip"
	"reflect"
	"testing"
	"time"
)

// Equal compares every field. A change of a field that it does not compare would never be passed
// on.
func TestEqualSeesEachField(t *testing.T) {
	addrs := []netip.Addr{netip.MustParseAddr("198.18.0.1")}
	s := Service{Name: Name{"a", "b"}, Created: time.Unix(1, 0), ClusterIPs: addrs,
		ExternalIPs: addrs, LoadBalancerIPs: addrs, BalancerIPs: addrs,
		SourceRanges: []netip.Prefix{netip.PrefixFrom(addrs[0], 32)},
		Ports:        []Port{{"http", TCP, 80, 30080}}, Affinity: time.Second, ExternalLocal: true,
		InternalLocal: true, HealthCheckNodePort: 1}
	slice := Slice{Service: s.Name, Name: "c", Ports: []SlicePort{{"http", TCP, 80}},
		Endpoints: []Endpoint{{}}}
	e := Endpoint{Addr: addrs[0], Node: "n", Ready: true, Serving: true, Terminating: true,
		Hints: &Hints{Zones: []string{"z"}, Nodes: []string{"n"}}}

	seesEachField(t, s, Service.Equal)
	seesEachField(t, slice, Slice.Equal)
	seesEachField(t, e, Endpoint.equal)
	seesEachField(t, *e.Hints, func(a, b Hints) bool {
		return Endpoint{Hints: &a}.equal(Endpoint{Hints: &b})
	})
	if copied := *e.Hints; !(Endpoint{Hints: &copied}).equal(Endpoint{Hints: e.Hints}) {
		t.Error("equal hints in two places are not equal")
	}
}

func seesEachField[T any](t *testing.T, full T, equal func(a, b T) bool) {
	t.Helper()
	if !equal(full, full) {
		t.Errorf("%T does not equal itself", full)
	}
	for i := range reflect.TypeFor[T]().NumField() {
		less := full
		reflect.ValueOf(&less).Elem().Field(i).SetZero()
		if equal(full, less) || equal(less, full) {
			t.Errorf("%T without %s is equal", full, reflect.TypeFor[T]().Field(i).Name)
		}
	}
}
