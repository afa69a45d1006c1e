package service

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestVIPsAreThoseOfKnownServices(t *testing.T) {
	addrs := func(texts ...string) (out []netip.Addr) {
		for _, text := range texts {
			out = append(out, netip.MustParseAddr(text))
		}
		return out
	}
	var v VIPs
	name := func(n string) Name { return Name{"shop", n} }
	for _, c := range []struct {
		situation string
		do        func() bool
		changes   bool
		want      []netip.Addr
	}{
		{"an address of the cluster's own", func() bool { return v.Put(Service{Name: name("a"), ClusterIPs: addrs("198.18.128.1")}) }, false, nil},
		{"balancers of both families, one twice", func() bool {
			return v.Put(Service{Name: name("b"), LoadBalancerIPs: addrs("fd42:fd::1", "198.19.199.1", "198.19.199.1")})
		}, true, addrs("198.19.199.1", "fd42:fd::1")},
		{"nothing new", func() bool {
			return v.Put(Service{Name: name("b"), LoadBalancerIPs: addrs("198.19.199.1", "fd42:fd::1")})
		}, false, addrs("198.19.199.1", "fd42:fd::1")},
		{"external, one of another's, one mapped", func() bool {
			return v.Put(Service{Name: name("c"), ExternalIPs: addrs("198.19.199.1", "::ffff:198.19.199.2")})
		}, true, addrs("198.19.199.1", "198.19.199.2", "fd42:fd::1")},
		{"what nobody can be reached at", func() bool {
			return v.Put(Service{Name: name("d"), ExternalIPs: append(addrs("127.0.0.1", "::", "224.0.0.1", "fe80::1%eth0"), netip.Addr{})})
		}, false, addrs("198.19.199.1", "198.19.199.2", "fd42:fd::1")},
		{"a service goes, whose address another has", func() bool { return v.Delete(name("b")) }, true, addrs("198.19.199.1", "198.19.199.2")},
		{"it goes again", func() bool { return v.Delete(name("b")) }, false, addrs("198.19.199.1", "198.19.199.2")},
		{"the other has none any more", func() bool { return v.Put(Service{Name: name("c")}) }, true, nil},
	} {
		if got := c.do(); got != c.changes {
			t.Errorf("%s: changes: %t, want %t", c.situation, got, c.changes)
		}
		if diff := cmp.Diff(c.want, v.Addrs(), cmpopts.EquateEmpty(), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("%s: %s", c.situation, diff)
		}
	}
}
