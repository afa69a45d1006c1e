package pod

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/pod/podtest"
)

var (
	range4  = netip.MustParsePrefix("198.18.0.0/16")
	range6  = netip.MustParsePrefix("fd42:1::/48")
	prefix4 = netip.MustParsePrefix("198.18.1.0/24")
	prefix6 = netip.MustParsePrefix("fd42:1:0:5::/64")
)

func TestGate(t *testing.T) {
	both := []netip.Prefix{prefix4, prefix6}
	for _, tt := range []struct {
		name string
		// take removes a part that Gate needs. Nil removes none.
		take     func(p Paths, h *nl.Handle) error
		prefixes []netip.Prefix
		want     string
	}{
		{name: "all there", prefixes: both},
		{name: "no marker", prefixes: both, want: abi.ReadyFile,
			take: func(p Paths, _ *nl.Handle) error { return os.Remove(p.ReadyFile) }},
		{name: "marker of another boot", prefixes: both, want: "another",
			take: func(p Paths, _ *nl.Handle) error {
				return abi.WriteMarker(p.ReadyFile,
					abi.Marker{BootID: "another",
						Families: cluster.Families{V4: true, V6: true}})
			}},
		{name: "corrupt marker", prefixes: both, want: "marker",
			take: func(p Paths, _ *nl.Handle) error {
				return os.WriteFile(p.ReadyFile, []byte("{"), 0o600)
			}},
		{name: "marker without the family", prefixes: both, want: prefix6.String(),
			take: func(p Paths, _ *nl.Handle) error { return podtest.Mark(p.ReadyFile, range4) }},
		{name: "egress guard not pinned", prefixes: both, want: abi.PinGuardEgress,
			take: func(p Paths, _ *nl.Handle) error {
				return os.Remove(p.pin(abi.PinGuardEgress))
			}},
		{name: "ingress guard not pinned", prefixes: both, want: abi.PinGuardIngress,
			take: func(p Paths, _ *nl.Handle) error {
				return os.Remove(p.pin(abi.PinGuardIngress))
			}},
		{name: "table of pods deleted", prefixes: both,
			want: "nft table inet " + abi.NFTPodTable,
			take: func(Paths, *nl.Handle) error { return podtest.Unguard() }},
		{name: "chain of pods deleted", prefixes: both,
			want: "nft table inet kubeveil_pods: chain prerouting",
			take: func(Paths, *nl.Handle) error {
				return nftHere(t, "delete chain inet kubeveil_pods prerouting")
			}},
		{name: "set of IPv6 addresses deleted", prefixes: both,
			want: "nft table inet kubeveil_pods: set pods6",
			take: func(Paths, *nl.Handle) error {
				return nftHere(t, "delete set inet kubeveil_pods pods6")
			}},
		{name: "nft table flushed", prefixes: both, want: "nft table inet " + abi.NFTGuardTable,
			take: deleteGuardTable},
		{name: "IPv4 rule for pods flushed", prefixes: both, want: "IPv4 rule 100",
			take: func(_ Paths, h *nl.Handle) error {
				return h.RuleDel(podtest.Rules(nl.FamilyV4)[1])
			}},
		{name: "IPv6 rule for tunnels flushed", prefixes: both, want: "IPv6 rule 90",
			take: func(_ Paths, h *nl.Handle) error {
				return h.RuleDel(podtest.Rules(nl.FamilyV6)[0])
			}},
		{name: "IPv4 range flushed", prefixes: both, want: "198.18.1.0/24",
			take: func(_ Paths, h *nl.Handle) error { return h.RouteDel(podtest.Closed(range4)) }},
		{name: "IPv6 range flushed", prefixes: both, want: "fd42:1:0:5::/64",
			take: func(_ Paths, h *nl.Handle) error { return h.RouteDel(podtest.Closed(range6)) }},
		{name: "IPv6 range flushed, pods have IPv4 only", prefixes: both[:1],
			take: func(_ Paths, h *nl.Handle) error { return h.RouteDel(podtest.Closed(range6)) }},
		{name: "pod prefix outside of every range",
			prefixes: []netip.Prefix{netip.MustParsePrefix("198.19.1.0/24")},
			want:     "198.19.1.0/24"},
		{name: "pod prefix larger than the range",
			prefixes: []netip.Prefix{netip.MustParsePrefix("198.18.0.0/15")},
			want:     "198.18.0.0/15"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			nettest.NeedBPF(t)
			host, p := nettest.NewHost(t, abi.RunDir), DefaultPaths()
			h := host.Handle()
			host.Run(t, func() error {
				return podtest.Ready(p.BPFDir, p.ReadyFile, range4, range6)
			})
			if tt.take != nil {
				host.Run(t, func() error { return tt.take(p, h) })
			}

			err := host.Do(func() error { return p.Gate(tt.prefixes) })
			if tt.want == "" {
				if err != nil {
					t.Errorf("Gate = %v, want open", err)
				}
				return
			}

			if !errors.Is(err, ErrClosed) || !strings.Contains(err.Error(), tt.want) ||
				!strings.Contains(err.Error(), "veild") {
				t.Errorf("Gate = %v, want %v that names %s and says what to do", err, ErrClosed,
					tt.want)
			}
		})
	}
}

func deleteGuardTable(Paths, *nl.Handle) error {
	_, err := nft.Delete(abi.NFTGuardTable)
	return err
}
