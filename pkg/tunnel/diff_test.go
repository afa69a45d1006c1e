package tunnel_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/tunnel"
	"github.com/kubeveil/kubeveil/pkg/tunnel/tunneltest"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func at() time.Time { return now }

func pub(n int) wgkey.Public { return wgkey.Public{0: byte(n), 1: byte(n >> 8), 31: 1} }

func pfx(n int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 19, byte(n), 0}), 24)
}

func ep(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, 0, byte(n)}), 51820)
}

func newKey(t interface{ Fatal(...any) }) wgkey.Private {
	k, err := wgkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func peer(n int, ips ...netip.Prefix) tunnel.Peer {
	return tunnel.Peer{Name: fmt.Sprint("node-", n), PublicKey: pub(n), Endpoint: ep(n),
		AllowedIPs: ips}
}

func spec(key wgkey.Private, peers ...tunnel.Peer) tunnel.Spec {
	return tunnel.Spec{Prune: true, Devices: []tunnel.Device{{Name: "veil0", ListenPort: 51820,
		PrivateKey: key, MTU: 1440, Peers: peers}}}
}

func TestDiffTouchesOnlyWhatDiffers(t *testing.T) {
	key := newKey(t)
	first := spec(key, peer(1, pfx(1)), peer(2, pfx(2)), peer(3, pfx(3)))
	endpoint, six := ep(9), netip.MustParseAddrPort("[fd42::9]:51820")
	for _, tc := range []struct {
		name string
		edit func(f *tunneltest.Fake)
		want tunnel.Spec
		// peers are the changes that are sent. Nil means that nothing is sent.
		peers []tunnel.PeerChange
	}{
		{"nothing", nil, first, nil},
		{"a new prefix is added, not replaced", nil,
			spec(key, peer(1, pfx(1), pfx(11)), peer(2, pfx(2)), peer(3, pfx(3))),
			[]tunnel.PeerChange{{Name: "node-1", PublicKey: pub(1),
				AllowedIPs: []netip.Prefix{pfx(11)}}}},
		{"a prefix that moves takes itself from its old owner", nil,
			spec(key, peer(1), peer(2, pfx(2), pfx(1)), peer(3, pfx(3))),
			[]tunnel.PeerChange{{Name: "node-2", PublicKey: pub(2),
				AllowedIPs: []netip.Prefix{pfx(1)}}}},
		{"a prefix that is given up", nil, spec(key, peer(1), peer(2, pfx(2)), peer(3, pfx(3))),
			[]tunnel.PeerChange{{Name: "node-1", PublicKey: pub(1), ReplaceAllowedIPs: true}}},
		{"a node with a new key takes over before the old key goes", nil,
			spec(key, tunnel.Peer{Name: "node-1", PublicKey: pub(7), Endpoint: ep(1),
				AllowedIPs: []netip.Prefix{pfx(1)}}, peer(2, pfx(2)), peer(3, pfx(3))),
			[]tunnel.PeerChange{
				{Name: "node-1", PublicKey: pub(7), Endpoint: ptr(ep(1)), ReplaceAllowedIPs: true,
					AllowedIPs: []netip.Prefix{pfx(1)}},
				{Name: "node-1", PublicKey: pub(1), Remove: true},
			}},
		{"unknown peers stay until every source has synced", nil,
			tunnel.Spec{Devices: spec(key).Devices}, nil},
		{"a peer that moved and shakes hands is left there", moved(time.Minute, endpoint), first,
			nil},
		{"a peer that moved and fell silent is set back", moved(time.Hour, endpoint), first,
			[]tunnel.PeerChange{{Name: "node-1", PublicKey: pub(1), Endpoint: ptr(ep(1))}}},
		{"a peer that moved and whose session has just expired is set back",
			moved(tunnel.SessionLifetime, endpoint), first,
			[]tunnel.PeerChange{{Name: "node-1", PublicKey: pub(1), Endpoint: ptr(ep(1))}}},
		{"a peer that moved before the clock was set back is left there",
			moved(-time.Hour, endpoint), first, nil},
		{"a peer that moved and never shook hands is set back", func(f *tunneltest.Fake) {
			f.Edit("veil0", func(d *tunnel.DeviceState) { d.Peers[0].Endpoint = endpoint })
		}, first, []tunnel.PeerChange{{Name: "node-1", PublicKey: pub(1), Endpoint: ptr(ep(1))}}},
		{"a peer that moved to another of its addresses is left there",
			moved(time.Minute, endpoint), sourcedFrom(first, ep(1).Addr(), endpoint.Addr()), nil},
		{"an endpoint that is none of the peer's addresses is set back",
			moved(time.Minute, endpoint), sourcedFrom(first, ep(1).Addr()),
			[]tunnel.PeerChange{{Name: "node-1", PublicKey: pub(1), Endpoint: ptr(ep(1))}}},
		{"an endpoint of a family that the underlay lacks is set back",
			moved(time.Minute, six), onUnderlay(first, cluster.Families{V4: true}),
			[]tunnel.PeerChange{{Name: "node-1", PublicKey: pub(1), Endpoint: ptr(ep(1))}}},
		{"an endpoint of another family that the underlay has is left there",
			moved(time.Minute, six), onUnderlay(first, cluster.Families{V4: true, V6: true}), nil},
		{"a changed claim is set at once", moved(time.Minute, endpoint),
			spec(key, tunnel.Peer{Name: "node-1", PublicKey: pub(1), Endpoint: ep(8),
				AllowedIPs: []netip.Prefix{pfx(1)}}, peer(2, pfx(2)), peer(3, pfx(3))),
			[]tunnel.PeerChange{{Name: "node-1", PublicKey: pub(1), Endpoint: ptr(ep(8))}}},
		{"somebody's preshared key is taken away", func(f *tunneltest.Fake) {
			f.Edit("veil0", func(d *tunnel.DeviceState) { d.Peers[0].HasPreshared = true })
		}, first, []tunnel.PeerChange{{Name: "node-1", PublicKey: pub(1), ClearPreshared: true}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := &tunneltest.Fake{}
			m := tunnel.NewManager(f, at)
			errtest.Must(t, errtest.Of(m.Sync(t.Context(), first)))

			if tc.edit != nil {
				tc.edit(f)
				m.Forget()
			}

			c, err := m.Sync(t.Context(), tc.want)
			errtest.Must(t, err)

			var got []tunnel.PeerChange
			for _, dc := range c.Configure {
				got = append(got, dc.Peers...)
			}

			if diff := cmp.Diff(tc.peers, got, cmpopts.EquateEmpty(),
				cmpopts.EquateComparable(netip.Prefix{}, netip.AddrPort{})); diff != "" {
				t.Errorf("peers in the configuration (-want +got):\n%s", diff)
			}

			for _, forget := range []func(){func() {}, m.Forget} {
				forget()
				if again, err := m.Sync(t.Context(), tc.want); err != nil || !again.Empty() {
					t.Errorf("second sync: %+v, %v", again, err)
				}
			}
		})
	}
}

func ptr[T any](v T) *T { return &v }

// sourcedFrom returns the spec with these addresses for the first peer.
func sourcedFrom(s tunnel.Spec, addrs ...netip.Addr) tunnel.Spec {
	d := s.Devices[0]
	d.Peers = slices.Clone(d.Peers)
	d.Peers[0].Sources = addrs
	s.Devices = []tunnel.Device{d}
	return s
}

// onUnderlay returns the spec of a node whose underlay has these families.
func onUnderlay(s tunnel.Spec, families cluster.Families) tunnel.Spec {
	s.Underlay = families
	return s
}

func moved(ago time.Duration, to netip.AddrPort) func(*tunneltest.Fake) {
	return func(f *tunneltest.Fake) {
		f.Edit("veil0", func(d *tunnel.DeviceState) {
			d.Peers[0].Endpoint, d.Peers[0].LastHandshake = to, now.Add(-ago)
		})
	}
}

// TestAnySpecIsReachedFromAny walks from one random Spec to another.
func TestAnySpecIsReachedFromAny(t *testing.T) {
	keys := []wgkey.Private{newKey(t), newKey(t)}
	rapid.Check(t, func(t *rapid.T) {
		f := &tunneltest.Fake{}
		m := tunnel.NewManager(f, at)
		for range rapid.IntRange(1, 6).Draw(t, "steps") {
			want := drawSpec(t, keys)
			if _, err := m.Sync(context.Background(), want); err != nil {
				t.Fatal(err)
			}
			have, _ := f.Read(context.Background())
			same(t, want, have)
			if c, err := m.Sync(context.Background(), want); err != nil || !c.Empty() {
				t.Fatalf("second sync: %+v, %v", c, err)
			}
			// Half of the steps begin with what Sync remembers, half with what is read.
			if rapid.Bool().Draw(t, "forget") {
				m.Forget()
				if c, err := m.Sync(context.Background(), want); err != nil || !c.Empty() {
					t.Fatalf("sync after a reading: %+v, %v", c, err)
				}
			}
		}
	})
}

func drawSpec(t *rapid.T, keys []wgkey.Private) tunnel.Spec {
	s := tunnel.Spec{Prune: true}
	for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"veil0", "veil1"}), 1, 2,
		rapid.ID[string]).Draw(t, "devices") {
		d := tunnel.Device{Name: name, ListenPort: rapid.IntRange(1, 3).Draw(t, "port"),
			PrivateKey: rapid.SampledFrom(keys).Draw(t, "key")}
		owner := map[int][]netip.Prefix{}
		for ip := range 8 {
			n := rapid.IntRange(0, 6).Draw(t, "owner")
			owner[n] = append(owner[n], pfx(ip))
		}
		for n := 1; n <= 6; n++ {
			if ips, ok := owner[n]; ok {
				p := peer(n, ips...)
				p.Endpoint = ep(rapid.IntRange(1, 9).Draw(t, "endpoint"))
				p.Keepalive = time.Duration(rapid.IntRange(0, 2).Draw(t, "keepalive")) * time.Second
				d.Peers = append(d.Peers, p)
			}
		}
		s.Devices = append(s.Devices, d)
	}
	return s
}

// same fails unless have equals want.
func same(t *rapid.T, want tunnel.Spec, have tunnel.LiveState) {
	describe := func(name string, key wgkey.Public, port int, peers []string) string {
		slices.Sort(peers)
		return fmt.Sprintf("%s %s %d\n%s", name, key, port, strings.Join(peers, "\n"))
	}
	one := func(key wgkey.Public, e netip.AddrPort, keepalive time.Duration,
		ips []netip.Prefix) string {
		ips = slices.Clone(ips)
		slices.SortFunc(ips, netip.Prefix.Compare)
		return fmt.Sprint(key, e, keepalive, ips)
	}

	var w, h []string
	for _, d := range want.Devices {
		var peers []string
		for _, p := range d.Peers {
			peers = append(peers, one(p.PublicKey, p.Endpoint, p.Keepalive, p.AllowedIPs))
		}
		w = append(w, describe(d.Name, d.PrivateKey.Public(), d.ListenPort, peers))
	}

	for _, d := range have.Devices {
		var peers []string
		for _, p := range d.Peers {
			peers = append(peers, one(p.PublicKey, p.Endpoint, p.Keepalive, p.AllowedIPs))
		}
		h = append(h, describe(d.Name, d.PublicKey, d.ListenPort, peers))
	}

	slices.Sort(w)
	slices.Sort(h)
	if diff := cmp.Diff(w, h); diff != "" {
		t.Fatalf("devices (-want +got):\n%s", diff)
	}
}

func TestFailedStepIsDoneByTheNextSync(t *testing.T) {
	broken := errors.New("broken")
	key := newKey(t)
	for _, step := range []string{"read", "create", "configure", "remove"} {
		t.Run(step, func(t *testing.T) {
			f := &tunneltest.Fake{}
			m := tunnel.NewManager(f, at)
			first := spec(key, peer(1, pfx(1)))
			first.Devices[0].Name = "veil7"
			errtest.Must(t, errtest.Of(m.Sync(t.Context(), first)))

			f.Fail(step, broken)
			want := spec(key, peer(1, pfx(1)))
			if _, err := m.Sync(t.Context(), want); !errors.Is(err, broken) {
				t.Fatalf("sync: %v, want %v", err, broken)
			}

			f.Fail(step, nil)
			errtest.Must(t, errtest.Of(m.Sync(t.Context(), want)))
			st, _ := m.Status(t.Context())
			if len(st.Devices) != 1 || st.Devices[0].Name != "veil0" ||
				len(st.Devices[0].Peers) != 1 || st.Devices[0].Peers[0].Name != "node-1" {
				t.Errorf("state %+v", st)
			}
		})
	}
}

func TestSpecCheck(t *testing.T) {
	key := newKey(t)
	own := peer(1)
	own.PublicKey = key.Public()
	double := peer(2)
	double.PublicKey = pub(1)
	unmasked := peer(1, netip.MustParsePrefix("198.19.1.7/24"))
	other := spec(key)
	other.Devices[0].Name = "eth0"
	twice := spec(key)
	twice.Devices = append(twice.Devices, twice.Devices[0])

	for _, tc := range []struct {
		name string
		spec tunnel.Spec
		want string
	}{
		{"fine", spec(key, peer(1, pfx(1)), peer(2, pfx(2))), ""},
		{"a key twice", spec(key, peer(1), double), "same key"},
		{"a prefix twice", spec(key, peer(1, pfx(1)), peer(2, pfx(1))), "same allowed ip"},
		{"own key", spec(key, own), "own key"},
		{"bits below the mask", spec(key, unmasked), "not a masked prefix"},
		{"a device of another name", other, `want "veil" and a number`},
		{"a device twice", twice, "occurs twice"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := tc.spec.Check()
			if (err == nil) != (tc.want == "") ||
				err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("check: %v, want %q", err, tc.want)
			}
		})
	}
}

func TestPlan(t *testing.T) {
	key := newKey(t)
	node := cluster.Node{
		Name: "node-1", Addresses: []netip.Addr{netip.MustParseAddr("198.18.0.1"),
			netip.MustParseAddr("fd42::1")},
		PodPrefixes: []netip.Prefix{pfx(1), netip.MustParsePrefix("fd42:1::/64")},
		Claim: &cluster.Claim{
			Keys:      []cluster.Key{{Epoch: 1, Public: pub(1)}, {Epoch: 2, Public: pub(2)}},
			Endpoints: []netip.AddrPort{ep(1), netip.MustParseAddrPort("[fd42::1]:51820")},
		},
	}

	in := tunnel.Inputs{
		Devices: []tunnel.Local{{Name: "veil0", ListenPort: 51820, PrivateKey: key},
			{Name: "veil1", Epoch: 1, ListenPort: 51830, PrivateKey: newKey(t)}},
		Mark: 7, MTU: 1440, Peers: []cluster.Node{node, {Name: "node-2"}}, Underlay6: true,
		Prune: true,
	}
	got := tunnel.Plan(in)
	errtest.Must(t, got.Check())
	if len(got.Devices) != 2 || !got.Prune || got.Devices[1].ListenPort != 51830 ||
		got.Devices[0].Mark != 7 {
		t.Fatalf("plan %+v", got)
	}

	for _, d := range got.Devices {
		want := []tunnel.Peer{{
			Name: "node-1", PublicKey: pub(2), Endpoint: netip.MustParseAddrPort("[fd42::1]:51820"),
			Sources: node.Addresses,
			AllowedIPs: []netip.Prefix{
				netip.MustParsePrefix("198.18.0.1/32"), pfx(1),
				netip.MustParsePrefix("fd42::1/128"), netip.MustParsePrefix("fd42:1::/64"),
			},
		}}
		slices.SortFunc(want[0].AllowedIPs, netip.Prefix.Compare)
		if diff := cmp.Diff(want, d.Peers, cmpopts.EquateComparable(netip.Prefix{},
			netip.AddrPort{}, netip.Addr{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", d.Name, diff)
		}
	}

	in.Underlay4, in.Underlay6, in.Roaming = true, false, true
	if s := tunnel.Plan(in).Devices[0].Peers[0].Sources; s != nil {
		t.Errorf("where peers roam an endpoint has to be among %v", s)
	}
	if e := tunnel.Plan(in).Devices[0].Peers[0].Endpoint; e != ep(1) {
		t.Errorf("endpoint %s, want %s", e, ep(1))
	}
}
