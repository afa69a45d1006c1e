package service

import (
	"math"
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
		Endpoints: EndpointsOf(Endpoint{}), Hints: []Hints{{}}}

	seesEachField(t, s, Service.Equal)
	seesEachField(t, slice, Slice.Equal)
	seesEachField(t, Hints{Zones: []string{"z"}, Nodes: []string{"n"}}, Hints.equal)
}

func TestEndpointsHaveTheHintsOfTheirNumber(t *testing.T) {
	var s Slice
	none := Endpoint{}
	first := Endpoint{Hints: s.AddHints(Hints{Zones: []string{"a"}})}
	second := Endpoint{Hints: s.AddHints(Hints{Nodes: []string{"n"}})}
	if s.HintsOf(none) != nil || s.HintsOf(first).Zones[0] != "a" ||
		s.HintsOf(second).Nodes[0] != "n" || s.HintsOf(Endpoint{Hints: 3}) != nil {
		t.Errorf("hints of %+v", s)
	}
	s.Hints = make([]Hints, math.MaxUint16)
	if n := s.AddHints(Hints{}); n != 0 {
		t.Errorf("hints beyond all numbers have number %d", n)
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
