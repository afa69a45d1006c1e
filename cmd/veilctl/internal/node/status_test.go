package node

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb/verbtest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// run runs a command line of a veilctl with the verbs of this package, and status for this node.
func run(ctx context.Context, args []string, out, progress io.Writer) error {
	status := verb.OnNode(&cobra.Command{Use: "status"}, PrintStatus)
	return verbtest.Run(ctx, args, out, progress, status, Peers(), MTU(), Guard(), Drops(), Flows(),
		Service())
}

// daemon serves s on a socket, like veild. ready reports whether this veild is ready.
func daemon(t *testing.T, s telemetry.Status, ready bool) string {
	t.Helper()
	return verbtest.Daemon(t, s, ready, nil)
}

func sample() telemetry.Status {
	return telemetry.Status{
		Node: "node-1", Started: time.Now(),
		Source: telemetry.Source{Kind: "kubernetes", Synced: true},
		Table:  telemetry.TableStatus{Revision: 7, Applied: 7},
		Devices: []telemetry.Device{{Name: "veil0", Kind: "userspace", Port: 51820, Up: true,
			Offloads: map[string]bool{"tun_tcp": true, "tun_udp": false}}},
		Peers: []telemetry.Peer{
			{Name: "node-2", State: telemetry.PeerUp, Device: "veil0",
				Endpoint: netip.MustParseAddrPort("198.18.0.12:51820"), MTU: 1296, Singly: true},
			{Name: "node-3", State: telemetry.PeerKeyless},
		},
		Guard: telemetry.Guard{InForce: true, Links: []string{"eth0"},
			Drops: []telemetry.Drop{{Number: 2, Name: "dst_in_range", Sentence: "It was.",
				Packets: 5}}},
		MTU: telemetry.MTU{Underlay: 1500, Pod: 1440,
			Explanation: []string{"  1500  underlay", "   -60  overhead"}},
		Sites: []telemetry.Site{{Site: cluster.Site{Name: "b", Reach: cluster.ReachNone,
			PodRanges:  []netip.Prefix{netip.MustParsePrefix("198.19.128.0/17")},
			NodeRanges: []netip.Prefix{netip.MustParsePrefix("198.18.1.0/24")}}},
			{Site: cluster.Site{Name: "c", Reach: cluster.ReachAll}, Nodes: 3},
			{Site: cluster.Site{Name: "d"}, Nodes: 2,
				Exports: &telemetry.SiteExports{Listed: true, Open: 5}},
			{Site: cluster.Site{Name: "e"}, Exports: &telemetry.SiteExports{}}},
		Refused: []cluster.Refusal{
			{Node: "node-9", Incumbent: "node-2", Reason: "it claims the key of node-2"},
		},
	}
}

func TestCommandsForPeople(t *testing.T) {
	socket := daemon(t, sample(), true)
	for command, want := range map[string][]string{
		"status": {"node-1, ready for pods", "1 up, 0 idle, 0 silent, 1 without a key",
			"node-9: it claims the key", "masqueraded traffic", "packets dropped: 5",
			"tun_udp off, udp_segment off to node-2",
			"b, closed; pods 198.19.128.0/17, nodes 198.18.1.0/24", "c, open, 3 nodes are peers",
			"d, exports only, 2 nodes are peers, 5 endpoints of this node are open;",
			"0 endpoints of this node are open until exports have been read"},
		"peers": {"node-2  up", "198.18.0.12:51820", "1296", "node-3  keyless"},
		"mtu":   {"  1500  underlay", "1296  on the way to node-2"},
		"guard": {"dst_in_range", "It was.", "eth0"},
	} {
		var out bytes.Buffer
		if err := run(t.Context(), []string{command, "--socket", socket}, &out,
			io.Discard); err != nil {
			t.Errorf("%s: %v", command, err)
		}
		for _, w := range want {
			if !strings.Contains(out.String(), w) {
				t.Errorf("%s does not say %q:\n%s", command, w, out.String())
			}
		}
	}
}

func TestStatusSaysWhichPoliciesAreInForce(t *testing.T) {
	five := 5
	for want, p := range map[string]telemetry.Policy{
		"revision aa11 in force; 3 select pods of this node, 1 pods are mute": {Listed: true,
			Told: "aa11", Revision: "aa11", Policies: 3, Pending: 1},
		"revision aa11 in force; revision bb22 was received and is not in force yet; 0": {Listed: true,
			Told: "bb22", Revision: "aa11"},
		"revision aa11 in force; 0 select pods of this node, 0 pods are mute, 5 pods have the fast " +
			"path": {Listed: true, Told: "aa11", Revision: "aa11", FastPath: &five},
		"not listed since veild started; the earlier policies stay in force; 0": {},
		"revision aa11 in force; 0 select pods of this node, 0 pods are mute; large changes of 2 " +
			"namespaces wait to be planned, the oldest for 1.5 s": {Listed: true, Told: "aa11",
			Revision: "aa11", Drafts: 2, OldestDraft: 1.5},
	} {
		if got := policiesLine(&p); !strings.HasPrefix(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestStatusNamesAddressesThatIdentifyNoPod(t *testing.T) {
	for want, i := range map[string]telemetry.IgnoredAddrs{
		"": {},
		"Identify no pod  2 addresses outside the prefixes of the pod's node, 1 that several pods " +
			"claim; for example: a; b": {OutsidePrefix: 2, Shared: 1, Some: []string{"a", "b"}},
	} {
		s := sample()
		s.Policy = &telemetry.Policy{Listed: true, Ignored: &i}
		var out bytes.Buffer
		errtest.Must(t, showStatus(&out, s))
		if text := out.String(); !strings.Contains(text, want) ||
			want == "" && strings.Contains(text, "Identify") {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestStatusNamesRefusedScrapes(t *testing.T) {
	for refused, want := range map[uint64]bool{0: false, 3: true} {
		s := sample()
		s.MetricsRefused = refused
		var out bytes.Buffer
		errtest.Must(t, showStatus(&out, s))
		if strings.Contains(out.String(), "3 requests of other hosts were refused") != want {
			t.Errorf("%d refused:\n%s", refused, out.String())
		}
	}
}

func TestStatusOfATunnelWithoutAKey(t *testing.T) {
	keyless, keyed := sample(), sample()
	keyed.Devices[0].PublicKey = wgkey.Public{1}
	for name, tt := range map[string]struct {
		status telemetry.Status
		want   bool
	}{"without a key": {keyless, true}, "with a key": {keyed, false}} {
		t.Run(name, func(t *testing.T) {
			socket := daemon(t, tt.status, true)
			for _, args := range [][]string{{"status"}, {"status", "-o", "json"}} {
				var out bytes.Buffer
				if err := run(t.Context(), append(args, "--socket", socket), &out,
					io.Discard); err != nil {
					t.Fatal(err)
				}
				missing := strings.Contains(out.String(), "no key yet")
				if len(args) > 1 {
					missing = !strings.Contains(out.String(), "publicKey")
				}
				if missing != tt.want {
					t.Errorf("%v shows a missing key: %v, want %v:\n%s", args, missing, tt.want,
						out.String())
				}
			}
		})
	}
}

// A node that never had an answer from the source has no last good table.
func TestStatusBeforeTheSourceIsHeard(t *testing.T) {
	unheard := sample()
	unheard.Source.Synced = false
	const lastGood = "the last good table is in force"
	for name, ready := range map[string]bool{"with a last good table": true, "without one": false} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			err := run(t.Context(), []string{"status", "--socket", daemon(t, unheard, ready)}, &out,
				io.Discard)
			if (err == nil) != ready || strings.Contains(out.String(), lastGood) != ready ||
				!strings.Contains(out.String(), "no answer from it yet") {
				t.Errorf("%v: %s", err, &out)
			}
		})
	}
}

func TestCommandsForPrograms(t *testing.T) {
	socket := daemon(t, sample(), true)
	for _, command := range []string{"status", "peers", "mtu", "guard"} {
		var out bytes.Buffer
		if err := run(t.Context(), []string{command, "-o", "json", "--socket", socket}, &out,
			io.Discard); err != nil {
			t.Errorf("%s: %v", command, err)
		}
		if !json.Valid(out.Bytes()) {
			t.Errorf("%s: no JSON:\n%s", command, out.String())
		}
	}
}
