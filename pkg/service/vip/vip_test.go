package vip

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/pkg/service"
)

func vipAddrs(texts ...string) (out []netip.Addr) {
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

func TestVIPsComeFromKnownServices(t *testing.T) {
	addrs := vipAddrs
	var v Addresses
	name := func(n string) service.Name { return service.Name{Namespace: "shop", Name: n} }

	began := time.Now()
	for _, c := range []struct {
		situation string
		after     time.Duration
		do        func(now time.Time) bool
		changes   bool
		want      []netip.Addr
	}{
		{"an address of the cluster's own", 0, func(now time.Time) bool {
			return v.Put(service.Service{Name: name("a"), ClusterIPs: addrs("198.18.128.1")}, now)
		}, false, nil},
		{"balancers of both families, one twice", 0, func(now time.Time) bool {
			return v.Put(service.Service{Name: name("b"),
				LoadBalancerIPs: addrs("fd42:fd::1", "198.19.199.1", "198.19.199.1")}, now)
		}, true, addrs("198.19.199.1", "fd42:fd::1")},
		{"nothing new", 0, func(now time.Time) bool {
			return v.Put(service.Service{Name: name("b"),
				LoadBalancerIPs: addrs("198.19.199.1", "fd42:fd::1")}, now)
		}, false, addrs("198.19.199.1", "fd42:fd::1")},
		{"external, one of another's, one mapped", 0, func(now time.Time) bool {
			return v.Put(service.Service{Name: name("c"),
				ExternalIPs: addrs("198.19.199.1", "::ffff:198.19.199.2")}, now)
		}, true, addrs("198.19.199.1", "198.19.199.2", "fd42:fd::1")},
		{"what nobody can be reached at", 0, func(now time.Time) bool {
			return v.Put(service.Service{Name: name("d"),
				ExternalIPs: append(addrs("127.0.0.1", "::", "224.0.0.1", "fe80::1%eth0"),
					netip.Addr{})}, now)
		}, false, addrs("198.19.199.1", "198.19.199.2", "fd42:fd::1")},
		{"of a family that the service does not have", 0, func(now time.Time) bool {
			return v.Put(service.Service{Name: name("e"), ClusterIPs: addrs("198.18.128.2"),
				LoadBalancerIPs: addrs("fd42:fd::9")}, now)
		}, false, addrs("198.19.199.1", "198.19.199.2", "fd42:fd::1")},
		{"a service goes", time.Hour, func(now time.Time) bool { return v.Delete(name("b"), now) },
			true, addrs("198.19.199.1", "198.19.199.2", "fd42:fd::1")},
		{"it goes again, an hour later", 2 * time.Hour,
			func(now time.Time) bool {
				return v.Delete(name("b"), now)
			}, false, addrs("198.19.199.1", "198.19.199.2", "fd42:fd::1")},
		{"more than an hour later only what another has is left", 2*time.Hour + time.Second,
			func(time.Time) bool { return false }, false, addrs("198.19.199.1", "198.19.199.2")},
		{"the other has none any more", 3 * time.Hour, func(now time.Time) bool {
			return v.Put(service.Service{Name: name("c")}, now)
		}, true, addrs("198.19.199.1", "198.19.199.2")},
		{"long after", 5 * time.Hour, func(time.Time) bool { return false }, false, nil},
	} {
		now := began.Add(c.after)
		if got := c.do(now); got != c.changes {
			t.Errorf("%s: changes: %t, want %t", c.situation, got, c.changes)
		}
		if got := v.Addrs(now, func([]netip.Addr) []netip.Addr { return nil }); !slices.Equal(got,
			c.want) {
			t.Errorf("%s: %v, want %v", c.situation, got, c.want)
		}
	}
}

func TestVIPsInUseStay(t *testing.T) {
	var v Addresses
	began := time.Now()
	v.Put(service.Service{Name: service.Name{Namespace: "shop", Name: "a"},
		ExternalIPs: vipAddrs("198.19.199.1")}, began)
	v.Left(vipAddrs("198.19.199.1", "198.19.199.2", "fd42:fd::1", "::ffff:198.19.199.3"), began)
	v.Delete(service.Name{Namespace: "shop", Name: "a"}, began.Add(Linger))

	for _, c := range []struct {
		situation          string
		after              time.Duration
		inUse, asked, want []netip.Addr
	}{
		{"at first", 0, nil, nil, vipAddrs("198.19.199.1", "198.19.199.2", "198.19.199.3",
			"fd42:fd::1")},
		{"an hour after the start two of three are in use", Linger + time.Second,
			vipAddrs("198.19.199.2", "fd42:fd::1"),
			vipAddrs("198.19.199.2", "198.19.199.3", "fd42:fd::1"),
			vipAddrs("198.19.199.1", "198.19.199.2", "fd42:fd::1")},
		{"soon after that nobody is asked", Linger + time.Minute, nil, nil,
			vipAddrs("198.19.199.1", "198.19.199.2", "fd42:fd::1")},
		{"what a service had an hour ago is in use", 2*Linger + time.Second,
			vipAddrs("198.19.199.1"), vipAddrs("198.19.199.1"),
			vipAddrs("198.19.199.1", "198.19.199.2", "fd42:fd::1")},
		{"an hour later nothing is", 4 * Linger, nil,
			vipAddrs("198.19.199.1", "198.19.199.2", "fd42:fd::1"), nil},
		{"and nobody is asked again", 9 * Linger, nil, nil, nil},
	} {
		var asked []netip.Addr
		got := v.Addrs(began.Add(c.after), func(addrs []netip.Addr) []netip.Addr {
			asked = addrs
			return c.inUse
		})
		if !slices.Equal(got, c.want) || !slices.Equal(asked, c.asked) {
			t.Errorf("%s: %v, want %v; asked about %v, want %v", c.situation, got, c.want, asked,
				c.asked)
		}
	}
}

// An address counts as former while no service has it, and the addresses of load balancers with
// ipMode Proxy stand apart.
func TestFormerAddressesAndBalancers(t *testing.T) {
	var v Addresses
	now, a, b := time.Now(), service.Name{Name: "a"}, service.Name{Name: "b"}
	check := func(when string, former, balancers []netip.Addr) {
		t.Helper()
		if f, p := v.Former(), v.Balancers(); !slices.Equal(f, former) || !slices.Equal(p, balancers) {
			t.Errorf("%s: former %v, balancers %v", when, f, p)
		}
	}
	vip, proxy := vipAddrs("198.19.199.1"), vipAddrs("198.19.199.2")
	v.Put(service.Service{Name: a, ExternalIPs: vip, BalancerIPs: proxy}, now)
	check("in use", nil, proxy)
	v.Put(service.Service{Name: a, BalancerIPs: proxy}, now)
	check("left by its service", vip, proxy)
	v.Put(service.Service{Name: b, LoadBalancerIPs: vip}, now)
	check("given to another service", nil, proxy)
	v.Delete(a, now)
	v.Delete(b, now)
	check("no service", vip, nil)
	v.Addrs(now.Add(2*Linger), func([]netip.Addr) []netip.Addr { return nil })
	check("after hours", vip, nil)
}
