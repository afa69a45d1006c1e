package vip

import (
	"fmt"
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

	put := func(s service.Service, now time.Time) bool {
		_, changed := v.Put(s, now)
		return changed
	}

	began := time.Now()
	for _, c := range []struct {
		situation string
		after     time.Duration
		do        func(now time.Time) bool
		changes   bool
		want      []netip.Addr
	}{
		{"an address of the cluster's own", 0, func(now time.Time) bool {
			return put(service.Service{Name: name("a"), ClusterIPs: addrs("198.18.128.1")}, now)
		}, false, nil},
		{"balancers of both families, one twice", 0, func(now time.Time) bool {
			return put(service.Service{Name: name("b"),
				LoadBalancerIPs: addrs("fd42:fd::1", "198.19.199.1", "198.19.199.1")}, now)
		}, true, addrs("198.19.199.1", "fd42:fd::1")},
		{"nothing new", 0, func(now time.Time) bool {
			return put(service.Service{Name: name("b"),
				LoadBalancerIPs: addrs("198.19.199.1", "fd42:fd::1")}, now)
		}, false, addrs("198.19.199.1", "fd42:fd::1")},
		{"external, one of another's, one mapped", 0, func(now time.Time) bool {
			return put(service.Service{Name: name("c"),
				ExternalIPs: addrs("198.19.199.1", "::ffff:198.19.199.2")}, now)
		}, true, addrs("198.19.199.1", "198.19.199.2", "fd42:fd::1")},
		{"what nobody can be reached at", 0, func(now time.Time) bool {
			return put(service.Service{Name: name("d"),
				ExternalIPs: append(addrs("127.0.0.1", "::", "224.0.0.1", "fe80::1%eth0"),
					netip.Addr{})}, now)
		}, false, addrs("198.19.199.1", "198.19.199.2", "fd42:fd::1")},
		{"of a family that the service does not have", 0, func(now time.Time) bool {
			return put(service.Service{Name: name("e"), ClusterIPs: addrs("198.18.128.2"),
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
			return put(service.Service{Name: name("c")}, now)
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

// many returns n addresses, the first of which is 198.19.0.0 plus from.
func many(from, n int) (out []netip.Addr) {
	for i := from; i < from+n; i++ {
		out = append(out, netip.AddrFrom4([4]byte{198, byte(18 + i>>16), byte(i >> 8), byte(i)}))
	}
	return out
}

// A namespace that changes its addresses again and again gets no more of them. Those of others do
// not wait, and it gets the refused ones when its former ones no longer count.
func TestNamespaceThatChangesItsAddressesCostsItself(t *testing.T) {
	var v Addresses
	began := time.Now()
	none := func([]netip.Addr) []netip.Addr { return nil }
	evil := service.Service{Name: service.Name{Namespace: "evil", Name: "web"}}
	const step = 4096
	for i := range 70 {
		evil.ExternalIPs = many(i*step, step)
		kept, _ := v.Put(evil, began)
		if got, most := len(v.Addrs(began, none)), NamespaceMax+step; got > most {
			t.Fatalf("after %d changes %d addresses count, want at most %d", i+1, got, most)
		}
		if all := v.Addrs(began, none); !slices.Contains(all, evil.ExternalIPs[step-1]) {
			t.Fatalf("change %d: an address of a service is open", i+1)
		}
		if full := i >= NamespaceMax/step; full != (len(kept.ExternalIPs) == 0) {
			t.Fatalf("change %d: %d of %d addresses are served", i+1, len(kept.ExternalIPs), step)
		}
	}
	if got := v.Refused(); !slices.Equal(got, []Refused{{"evil", step, 0}}) {
		t.Errorf("refused %v, want %d addresses of evil", got, step)
	}

	shop := service.Service{Name: service.Name{Namespace: "shop", Name: "web"},
		LoadBalancerIPs: vipAddrs("198.51.100.1")}
	if kept, changed := v.Put(shop, began); !changed || len(kept.LoadBalancerIPs) != 1 {
		t.Errorf("another namespace's address: served %v, changed %t", kept.LoadBalancerIPs, changed)
	}

	later := began.Add(Linger + time.Second)
	v.Addrs(later, none)
	again := v.Retry(later)
	if len(again) != 1 || again[0].Name != evil.Name {
		t.Fatalf("put again are %v, want the service of evil", again)
	}
	kept, changed := v.Put(again[0], later)
	if !changed || !slices.Equal(kept.ExternalIPs, evil.ExternalIPs) || len(v.Refused()) > 0 {
		t.Errorf("after an hour %d addresses are served, refused %v", len(kept.ExternalIPs),
			v.Refused())
	}
	if again := v.Retry(later.Add(time.Hour)); len(again) > 0 {
		t.Errorf("put again without a refused address: %v", again)
	}
}

// Many namespaces that change their addresses leave room for a namespace with few.
func TestFewAddressesHaveRoomBesideManyNamespaces(t *testing.T) {
	var v Addresses
	now := time.Now()
	for ns := range 9 {
		for part := range 4 {
			v.Put(service.Service{Name: service.Name{Namespace: fmt.Sprint("ns", ns),
				Name: fmt.Sprint(part)}, ExternalIPs: many((4*ns+part)*4096, 4096)}, now)
		}
	}
	all := v.Addrs(now, func([]netip.Addr) []netip.Addr { return nil })
	if len(all) > NormalMax+9*smallNamespace+refusedMax {
		t.Errorf("%d addresses count", len(all))
	}
	kept, _ := v.Put(service.Service{Name: service.Name{Namespace: "shop", Name: "web"},
		LoadBalancerIPs: vipAddrs("198.51.100.1", "fd42:fd::1")}, now)
	if len(kept.LoadBalancerIPs) != 2 {
		t.Errorf("served %v, want both", kept.LoadBalancerIPs)
	}
}

// After a restart each service gets the addresses back that the guard kept closed for it.
func TestServicesGetTheirAddressesBackAfterARestart(t *testing.T) {
	for _, kept := range []int{NormalMax, servedMax} {
		var v Addresses
		now := time.Now()
		v.Left(many(0, kept), now)
		for part := range 3 {
			s := service.Service{Name: service.Name{Namespace: "shop", Name: fmt.Sprint(part)},
				ExternalIPs: many(part*4096, 4096)}
			if got, _ := v.Put(s, now); len(got.ExternalIPs) != 4096 {
				t.Errorf("beside %d addresses that were closed, %d of 4096 are served", kept,
					len(got.ExternalIPs))
			}
		}
		if v.total != kept {
			t.Errorf("%d addresses count, want %d", v.total, kept)
		}
	}
}

// Refused addresses are closed while there is room, those of namespaces with few of them first.
func TestRefusedAddressesStayClosed(t *testing.T) {
	var v Addresses
	now := time.Now()
	none := func([]netip.Addr) []netip.Addr { return nil }
	v.Left(many(1<<17, servedMax), now)
	for part := range 9 {
		v.Put(service.Service{Name: service.Name{Namespace: "evil", Name: fmt.Sprint(part)},
			ExternalIPs: many(part*4096, 4096)}, now)
	}
	shop := service.Service{Name: service.Name{Namespace: "shop", Name: "web"},
		LoadBalancerIPs: vipAddrs("198.51.100.1")}
	if _, changed := v.Put(shop, now); !changed {
		t.Error("a refused address that is to be closed is not a change")
	}

	all := v.Addrs(now, none)
	if len(all) != servedMax+refusedMax || !slices.Contains(all, shop.LoadBalancerIPs[0]) {
		t.Errorf("%d addresses count, want %d with %v", len(all), servedMax+refusedMax,
			shop.LoadBalancerIPs)
	}
	want := []Refused{{"evil", 9 * 4096, 9*4096 + 1 - refusedMax}, {"shop", 1, 0}}
	if got := v.Refused(); !slices.Equal(got, want) {
		t.Errorf("refused %v, want %v", got, want)
	}
	if !v.Delete(shop.Name, now) || slices.Contains(v.Addrs(now, none), shop.LoadBalancerIPs[0]) {
		t.Error("a refused address that was never served stays closed without its service")
	}
}
