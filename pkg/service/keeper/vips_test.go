package keeper

import (
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
	"github.com/kubeveil/kubeveil/pkg/service/link"
)

// Addresses that were closed to pods stay closed until it is known that they may be opened.
func TestAddressesOfServicesStayClosed(t *testing.T) {
	left, known := nettest.Addrs("198.19.199.1"), nettest.Addrs("198.19.199.2")
	both := nettest.Addrs("198.19.199.1", "198.19.199.2")
	const hours = 3 * time.Hour
	for _, c := range []struct {
		situation    string
		ebpf, listed bool
		ago          time.Duration // when veild began
		want         []netip.Addr
	}{
		{"another program translates", false, false, hours, left},
		{"not all services are listed", true, false, 0, both},
		{"not all services are listed for hours", true, false, hours, both},
		{"all are listed, but flows may be left", true, true, 0, both},
		{"all are listed, and no flow is left", true, true, hours, known},
	} {
		t.Run(c.situation, func(t *testing.T) {
			log := slog.New(slog.DiscardHandler)
			f := &Feature{o: FeatureOptions{Closed: left, Log: log}}
			if c.ebpf {
				f.links = link.New(&bpfmaps.Table{}, link.Options{Log: log}) // which has no flows
				f.vips.Left(left, time.Now().Add(-c.ago))
				f.vips.Put(service.Service{Name: service.Name{Name: "web"},
					LoadBalancerIPs: known}, time.Now())
				f.listed.Store(c.listed)
			}

			got := slices.SortedFunc(slices.Values(f.Closed()), netip.Addr.Compare)
			if !slices.Equal(got, c.want) {
				t.Errorf("closed %v, want %v", got, c.want)
			}
		})
	}
}
