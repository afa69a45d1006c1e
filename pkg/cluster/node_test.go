package cluster

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// Equal compares every field. A change of a field that it does not compare would never be saved.
func TestEqualSeesEachField(t *testing.T) {
	addr := netip.MustParseAddr("198.18.0.1")
	prefixes := []netip.Prefix{netip.PrefixFrom(addr, 32)}
	full := Node{
		Name: "a", Created: time.Unix(1, 0), ControlPlane: true, Zone: "z", Leaving: true,
		Addresses: []netip.Addr{addr},
		Contested: []netip.Addr{addr}, PodPrefixes: prefixes,
		Claim: &Claim{
			Keys:      []Key{{1, wgkey.Public{1}}},
			Endpoints: []netip.AddrPort{netip.AddrPortFrom(addr, 1)}, PodPrefixes: prefixes,
			MTU: 1500, Features: []Feature{"x"},
		},
	}
	same := full

	claim := *full.Claim
	same.Claim, same.Created = &claim, full.Created.UTC()
	if !full.Equal(same) || !(Node{}).Equal(Node{Addresses: []netip.Addr{}}) {
		t.Error("what says the same is not equal")
	}

	for i := range reflect.TypeFor[Node]().NumField() {
		less := full
		reflect.ValueOf(&less).Elem().Field(i).SetZero()
		if full.Equal(less) || less.Equal(full) {
			t.Errorf("a node without %s is equal", reflect.TypeFor[Node]().Field(i).Name)
		}
	}

	for i := range reflect.TypeFor[Claim]().NumField() {
		less := *full.Claim
		reflect.ValueOf(&less).Elem().Field(i).SetZero()
		if full.Claim.Equal(&less) {
			t.Errorf("a claim without %s is equal", reflect.TypeFor[Claim]().Field(i).Name)
		}
	}
}
