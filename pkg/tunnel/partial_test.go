package tunnel_test

import (
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/pkg/tunnel"
	"github.com/kubeveil/kubeveil/pkg/tunnel/tunneltest"
)

// genPeers returns peers with few keys and addresses, so that these often move from one peer to
// another. Sometimes a Spec is invalid.
func genPeers(t *rapid.T) []tunnel.Peer {
	var peers []tunnel.Peer
	for _, n := range rapid.SliceOfNDistinct(rapid.IntRange(0, 9), 0, 6, rapid.ID[int]).Draw(t,
		"nodes") {
		p := peer(rapid.IntRange(0, 12).Draw(t, "key"))
		p.Name = fmt.Sprintf("node-%d", n)
		p.Endpoint = ep(rapid.IntRange(0, 3).Draw(t, "endpoint"))
		p.AllowedIPs = nil
		for _, ip := range rapid.SliceOfNDistinct(rapid.IntRange(0, 15), 0, 2,
			rapid.ID[int]).Draw(t, "ips") {
			p.AllowedIPs = append(p.AllowedIPs, pfx(ip))
		}
		if rapid.Bool().Draw(t, "bound") {
			p.Sources = []netip.Addr{p.Endpoint.Addr()}
		}
		if rapid.IntRange(0, 9).Draw(t, "keepalive") == 0 {
			p.Keepalive = 25 * time.Second
		}
		peers = append(peers, p)
	}
	slices.SortFunc(peers, func(a, b tunnel.Peer) int { return strings.Compare(a.Name, b.Name) })
	return peers
}

// A Manager that compares only changed peers does the same as one that compares all, which is the
// oracle.
func TestSyncOfChangedPeersEqualsSyncOfAll(t *testing.T) {
	key := newKey(t)
	sameNetip := cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}, netip.AddrPort{})
	rapid.Check(t, func(t *rapid.T) {
		f, oracleFake := &tunneltest.Fake{}, &tunneltest.Fake{}
		m, oracle := tunnel.NewManager(f, at), tunnel.NewManager(oracleFake, at)
		want := spec(key)
		for step := range 30 {
			want.Devices = slices.Clone(want.Devices)
			want.Devices[0].Peers = genPeers(t)
			want.Prune = rapid.IntRange(0, 9).Draw(t, "prune") > 0
			if rapid.IntRange(0, 19).Draw(t, "port") == 0 {
				want.Devices[0].ListenPort++
			}

			oracle.Unsettle()
			wantChanges, wantErr := oracle.Sync(context.Background(), want)
			changes, err := m.Sync(context.Background(), want)
			if (err == nil) != (wantErr == nil) {
				t.Fatalf("step %d: error %v, want %v", step, err, wantErr)
			}
			byKey := cmpopts.SortSlices(func(a, b tunnel.PeerChange) bool {
				return fmt.Sprint(a.Remove, a.PublicKey) < fmt.Sprint(b.Remove, b.PublicKey)
			})
			if d := diff(wantChanges, changes, sameNetip, byKey); d != "" {
				t.Fatalf("step %d: changes: %s", step, d)
			}
			if d := diff(devices(t, oracleFake), devices(t, f), sameNetip); d != "" {
				t.Fatalf("step %d: devices: %s", step, d)
			}
			if rapid.IntRange(0, 9).Draw(t, "watch") == 0 {
				for _, m := range []*tunnel.Manager{m, oracle} {
					if _, err := m.Watch(context.Background()); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	})
}

// devices returns the devices of a fake, with their peers sorted by key.
func devices(t *rapid.T, f *tunneltest.Fake) tunnel.LiveState {
	s, err := f.Read(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range s.Devices {
		slices.SortFunc(d.Peers, func(a, b tunnel.PeerState) int {
			return slices.Compare(a.PublicKey[:], b.PublicKey[:])
		})
	}
	return s
}

// diff is cmp.Diff for values that are mostly equal: comparing these with cmp takes most of the
// time of a test.
func diff(want, got any, opts ...cmp.Option) string {
	if reflect.DeepEqual(want, got) {
		return ""
	}
	return cmp.Diff(want, got, opts...)
}
