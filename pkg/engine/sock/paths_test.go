package sock

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nl"
)

// twoLinks returns a namespace with two links that have the addresses a0 and a1, and a route to
// everything by the first one.
func twoLinks(t *testing.T, p twoPaths) *nettest.NS {
	t.Helper()
	a, b := nettest.NewNS(t), nettest.NewNS(t)
	nettest.Veth(t, nettest.End{NS: a, Name: "eth0", Addrs: []netip.Prefix{p.a0}},
		nettest.End{NS: b, Name: "eth0"})
	nettest.Veth(t, nettest.End{NS: a, Name: "eth1", Addrs: []netip.Prefix{p.a1}},
		nettest.End{NS: b, Name: "eth1"})
	nettest.AddRoute(t, a, p.everything, p.b0.Addr(), "eth0")
	return a
}

func pathsIn(t *testing.T, ns *nettest.NS) *Paths {
	t.Helper()
	var p *Paths
	ns.Run(t, func() (err error) {
		p, err = NewPaths()
		return err
	})
	t.Cleanup(p.Close)
	return p
}

// The link of a datagram is the link of the route, regardless of its source. A source that is not
// local and a destination without a route are errors that differ from others.
func TestLinkFollowsTheRoute(t *testing.T) {
	for _, p := range bothFamilies {
		t.Run(p.name, func(t *testing.T) {
			ns := twoLinks(t, p)
			paths := pathsIn(t, ns)
			first, second := int32(ns.Link("eth0").Attrs().Index), int32(ns.Link("eth1").Attrs().Index)
			for _, tc := range []struct {
				name       string
				to, source netip.Addr
				link       int32
				err        error
			}{
				{"no source", p.loopback.Addr(), netip.Addr{}, first, nil},
				{"source of the link", p.loopback.Addr(), p.a0.Addr(), first, nil},
				{"source of another link", p.loopback.Addr(), p.a1.Addr(), first, nil},
				{"neighbor", p.b1.Addr(), p.a0.Addr(), second, nil},
				{"source that is not local", p.loopback.Addr(), p.b0.Addr(), 0, unix.ENETUNREACH},
			} {
				if tc.err != nil && tc.to.Is6() {
					continue // The send checks it, over IPv6.
				}
				link, err := paths.Link(&Endpoint{Addr: netip.AddrPortFrom(tc.to, 9),
					Source: tc.source}, 0)
				if link != tc.link || !errors.Is(err, tc.err) {
					t.Errorf("%s: link %d, %v, want %d, %v", tc.name, link, err, tc.link, tc.err)
				}
			}
			ns.OnLink("eth0", func(h *nl.Handle, l nl.Link) error { return h.LinkSetDown(l) })
			link, err := paths.Link(&Endpoint{Addr: netip.AddrPortFrom(p.loopback.Addr(), 9)}, 0)
			if !errors.Is(err, unix.ENETUNREACH) {
				t.Errorf("without a route: link %d, %v, want %v", link, err, unix.ENETUNREACH)
			}
		})
	}
}

// Each change of a link, an address, a route or a rule is reported for the endpoints that it may be
// about.
func TestChangesOfPathsAreReported(t *testing.T) {
	for _, p := range bothFamilies {
		t.Run(p.name, func(t *testing.T) {
			ns := twoLinks(t, p)
			paths := pathsIn(t, ns)
			reported := make(chan Change, 1000)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				for {
					list, ok := paths.Wait(nil)
					for _, c := range list {
						reported <- c
					}
					if !ok {
						return
					}
				}
			}()
			defer func() { paths.Stop(); <-ended }()

			link := int32(ns.Link("eth1").Attrs().Index)
			narrow := netip.PrefixFrom(p.loopback.Addr(), p.loopback.Addr().BitLen())
			more := netip.PrefixFrom(p.a1.Addr().Next().Next(), p.a1.Bits())
			family := nl.FamilyV4
			if p.name == "ipv6" {
				family = nl.FamilyV6
			}
			for _, tc := range []struct {
				name   string
				change func()
				want   Change
			}{
				{"route", func() { nettest.AddRoute(t, ns, narrow, p.b1.Addr(), "eth1") },
					Change{Prefix: narrow}},
				{"address", func() { nettest.AddAddr(t, ns, "eth1", more) }, Change{Source: more.Addr()}},
				{"rule", func() {
					ns.Run(t, func() error {
						h, err := nl.Open()
						if err != nil {
							return err
						}
						defer h.Close()
						r := nl.NewRule()
						r.Family, r.Table, r.Priority, r.Mark = family, 77, 77, 7
						return h.RuleAdd(r)
					})
				}, Change{}},
				{"link", func() {
					ns.OnLink("eth1", func(h *nl.Handle, l nl.Link) error { return h.LinkSetDown(l) })
				}, Change{Link: link}},
			} {
				tc.change()
				for c := range reported {
					if c == tc.want {
						break
					}
				}
			}
		})
	}
}

func TestChangeAffectsItsEndpoints(t *testing.T) {
	at := Endpoint{Addr: netip.MustParseAddrPort("198.18.9.2:9"), Interface: 3,
		Source: netip.MustParseAddr("198.18.1.1")}
	six := Endpoint{Addr: netip.MustParseAddrPort("[fd42::2]:9"), Interface: 4}
	for _, tc := range []struct {
		name   string
		change Change
		want   []bool // at, six
	}{
		{"all", Change{}, []bool{true, true}},
		{"its link", Change{Link: 3}, []bool{true, false}},
		{"another link", Change{Link: 5}, []bool{false, false}},
		{"its prefix", Change{Prefix: netip.MustParsePrefix("198.18.0.0/16")}, []bool{true, false}},
		{"another prefix", Change{Prefix: netip.MustParsePrefix("198.19.0.0/16")}, []bool{false, false}},
		{"the default route", Change{Prefix: netip.MustParsePrefix("::/0")}, []bool{false, true}},
		{"its source", Change{Source: at.Source}, []bool{true, false}},
		{"another address", Change{Source: at.Addr.Addr()}, []bool{false, false}},
	} {
		if got := []bool{tc.change.Affects(&at), tc.change.Affects(&six)}; !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

func FuzzChanges(f *testing.F) {
	p := &Paths{}
	f.Add(p.question(&Endpoint{Addr: netip.MustParseAddrPort("198.18.9.2:9")}, 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		eachMessage(b, func(kind uint16, _ uint32, body []byte) {
			readChange(kind, body)
			_, _ = readLink(kind, body)
		})
	})
}
