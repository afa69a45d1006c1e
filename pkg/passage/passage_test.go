package passage

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/pod/podtest"
)

// The main thread shows the process's mounts to the leak check: a test that
// leaves it in another mount namespace must not get it.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

var (
	own  = nettest.Prefixes("198.18.1.0/24", "fd42:1:0:1::/64")
	peer = nettest.Prefixes("198.18.2.0/24", "fd42:1:0:2::/64")
)

func TestWaysUseCommonFamilies(t *testing.T) {
	for name, tt := range map[string]struct {
		own, peer []netip.Prefix
		want      []Way
	}{
		"both families": {own, peer, []Way{{own[0].Addr(), peer[0].Addr()},
			{own[1].Addr(), peer[1].Addr()}}},
		"one in common": {own, peer[1:], []Way{{own[1].Addr(), peer[1].Addr()}}},
		"none":          {own[:1], peer[1:], nil},
		"two peers": {own[:1], nettest.Prefixes("198.18.3.0/24", "198.18.2.0/24"),
			[]Way{{own[0].Addr(), netip.MustParseAddr("198.18.3.0")}}},
	} {
		if got := Ways(tt.own, tt.peer); !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %v, want %v", name, got, tt.want)
		}
	}
}

// host is a node with a link that stands for the tunnel.
func host(t *testing.T) (*nettest.Host, *nettest.NS) {
	t.Helper()
	nettest.NeedBPF(t)
	h, behind := nettest.NewHost(t, abi.RunDir), nettest.NewNS(t)
	const device = abi.TunnelDevicePrefix + "0"
	nettest.Veth(t, nettest.End{NS: h.NS, Name: device}, nettest.End{NS: behind, Name: "behind"})
	h.Run(t, func() error { return podtest.Ready(abi.BPFDir, abi.ReadyFile) })
	for _, p := range peer {
		nettest.AddRoute(t, h.NS, p, netip.Addr{}, device)
	}
	nettest.Sysctl(t, h.NS, "ipv4/ip_forward", "1")
	nettest.Sysctl(t, h.NS, "ipv6/conf/all/forwarding", "1")
	h.OnLink(device, func(n *nl.Handle, l nl.Link) error {
		return n.LinkSetGroup(l, int(abi.TunnelGroup))
	})
	return h, behind
}

func TestProbe(t *testing.T) {
	for name, tt := range map[string]struct {
		rules   string
		sysctl  string
		dropped string // what the error names; empty means no error
		other   bool   // an error that is not ErrDropped
	}{
		"nothing in the way": {},
		"a filter that drops": {rules: "table inet fw { chain forward { type filter hook " +
			"forward priority 0; policy drop; }; }", dropped: "198.18.1.0 to 198.18.2.0"},
		"a filter of one family": {rules: "table ip6 fw { chain forward { type filter hook " +
			"forward priority 0; policy drop; }; }", dropped: "fd42:1:0:1:: to fd42:1:0:2::"},
		"a filter that accepts pods": {rules: `table inet fw { chain forward { type filter hook forward priority 0; policy drop; iifname "vpod*" accept; }; }`},
		"a filter at postrouting": {rules: "table ip fw { chain out { type filter hook " +
			"postrouting priority 0; policy drop; }; }", dropped: "198.18.1.0"},
		"no forwarding": {sysctl: "ipv4/ip_forward", other: true},
	} {
		t.Run(name, func(t *testing.T) {
			h, behind := host(t)
			frames := nettest.NewCapture(t, behind, nettest.SnifferOptions{})
			if tt.sysctl != "" {
				nettest.Sysctl(t, h.NS, tt.sysctl, "0")
			}
			if tt.rules != "" {
				h.Run(t, func() error { return exec.Command("nft", tt.rules).Run() })
			}

			var err error
			h.Run(t, func() error {
				err = Probe(t.Context(), abi.RunDir, Ways(own, peer))
				return nil
			})
			if errors.Is(err, ErrDropped) != (tt.dropped != "") ||
				(err != nil) != (tt.dropped != "" || tt.other) {
				t.Errorf("got %v", err)
			}
			if tt.dropped != "" && !strings.Contains(err.Error(), tt.dropped) {
				t.Errorf("%v does not name %s", err, tt.dropped)
			}

			for _, f := range frames.All(t) {
				if strings.Contains(string(f.Data), "kubeveil probe") {
					t.Errorf("a datagram left: % x", f.Data)
				}
			}

			nothingLeft(t, h)
		})
	}
}

// The objects that a killed process left during a probe do not disturb the next probe.
func TestProbeAfterOneThatWasKilled(t *testing.T) {
	h, _ := host(t)
	h.Run(t, func() error {
		if err := writeCounters("vpod", Ways(own, peer)); err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Join(abi.RunDir, "probe/pods"), 0o700); err != nil {
			return err
		}
		return Probe(t.Context(), abi.RunDir, Ways(own, peer))
	})
	nothingLeft(t, h)
	h.Run(t, func() error {
		if err := writeCounters("vpod", nil); err != nil {
			return err
		}
		return errors.Join(Remove(), Remove())
	})
	nothingLeft(t, h)
}

// nothingLeft finds what a probe left on the node.
func nothingLeft(t *testing.T, h *nettest.Host) {
	t.Helper()
	h.Run(t, func() error {
		n, links, err := nl.OpenLinks()
		if err != nil {
			return err
		}
		defer n.Close()

		for _, l := range links {
			if strings.HasPrefix(l.Attrs().Name, abi.PodLinkPrefix) {
				t.Errorf("link %s is left", l.Attrs().Name)
			}
		}

		if _, err := os.Stat(filepath.Join(abi.RunDir, "probe")); !errors.Is(err,
			os.ErrNotExist) {
			t.Errorf("the directory is left: %v", err)
		}
		c, err := nftables.New()
		if err != nil {
			return err
		}

		tables, err := c.ListTables()
		for _, table := range tables {
			if table.Name == abi.NFTProbeTable {
				t.Error("the table is left")
			}
		}

		return err
	})
}
