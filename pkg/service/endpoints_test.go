package service

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// randomEndpoints returns endpoints whose addresses are among addrs.
func randomEndpoints(r *rand.Rand, addrs ...string) (list []Endpoint) {
	for range r.IntN(6) {
		e := Endpoint{Node: fmt.Sprint("node-", r.IntN(3)), Ready: true, Serving: true}
		if a := addrs[r.IntN(len(addrs))]; a != "" {
			e.Addr = netip.MustParseAddr(a)
		}
		if r.IntN(3) == 0 {
			e.Ready, e.Serving, e.Terminating = r.IntN(2) == 0, r.IntN(2) == 0, r.IntN(2) == 0
		}
		if r.IntN(3) == 0 {
			e.Hints = uint16(r.IntN(3))
		}
		list = append(list, e)
	}
	return list
}

// A list holds the endpoints that were added, with addresses of any family and zone. Two
// lists are equal if their endpoints are.
func TestEndpointsAreTheListThatWasAdded(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	kinds := [][]string{{"198.18.1.1", "198.18.1.2"}, {"fd42::1", "::ffff:198.18.1.1"},
		{"198.18.1.1", "fd42::1"}, {"198.18.1.1", "fe80::1%eth0", ""}}
	for i := range 5000 {
		a, b := randomEndpoints(r, kinds[i%4]...), randomEndpoints(r, kinds[i/4%4]...)
		if i%3 == 0 {
			b = slices.Clone(a)
		}
		got := EndpointsOf(a...)
		if all := slices.Collect(got.All()); !slices.Equal(all, a) || got.Len() != len(a) {
			t.Fatalf("%+v is %+v", a, all)
		}
		if got.Equal(EndpointsOf(b...)) != slices.Equal(a, b) {
			t.Fatalf("%+v and %+v: equal is %t", a, b, !slices.Equal(a, b))
		}
		same := got.Map(func(e Endpoint) Endpoint { return e })
		if !same.Equal(got) {
			t.Fatalf("%+v is mapped to %+v", a, slices.Collect(same.All()))
		}
	}
}

// An endpoint with the zero value for its node is on no node.
func TestEndpointWithoutANode(t *testing.T) {
	var l Endpoints
	l.Add(Endpoint{Node: "ignored"}, nodeName{})
	if e := l.At(0); e != (Endpoint{}) {
		t.Errorf("got %+v", e)
	}
}

// A million endpoints fit the memory of veild: an IPv4 endpoint takes 12 bytes, one of IPv6 24.
func TestEndpointsAreSmall(t *testing.T) {
	for addr, most := range map[string]int{"198.18.1.1": 12, "fd42::1": 24} {
		l := EndpointsOf(slices.Repeat([]Endpoint{{Addr: netip.MustParseAddr(addr), Node: "node-1",
			Ready: true, Serving: true}}, 1000)...)
		in := l.list
		size := 4*cap(in.v4) + 16*cap(in.v6) + 24*cap(in.mixed) + 8*cap(in.nodes) +
			cap(in.states) + 2*cap(in.hints)
		if size > most*1050 {
			t.Errorf("1,000 endpoints like %s take %d bytes, want %d each", addr, size, most)
		}
	}
}
