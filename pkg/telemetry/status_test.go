package telemetry

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

func TestFaultsNameWhatCannotBeReached(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	silent := Peer{Name: "b", State: PeerSilent, Device: "veil0",
		SilentSince: now.Add(-27 * time.Second)}
	for name, tt := range map[string]struct {
		status Status
		want   []string
	}{
		"a node that is well": {Status{Peers: []Peer{{Name: "b", State: PeerUp},
			{Name: "c", State: PeerIdle}}, Devices: []Device{{Name: "veil0", Kind: "kernel", Up: true,
			PublicKey: wgkey.Public{1}}}}, nil},
		"a silent peer": {Status{Peers: []Peer{silent}},
			[]string{"peer b has not answered for 27s: it is down, or the network drops UDP"}},
		"silent on one device of two": {Status{Peers: []Peer{silent, {Name: "b", State: PeerIdle,
			Device: "veil1"}}}, nil},
		"silent on both": {Status{Peers: []Peer{silent, silent}},
			[]string{"peer b has not answered for 27s: it is down, or the network drops UDP"}},
		"a peer without a key": {Status{Peers: []Peer{{Name: "b", State: PeerKeyless}}},
			[]string{"peer b has no key: start veild there"}},
		"a refused claim": {Status{Peers: []Peer{{Name: "b", State: PeerRefused}},
			Refused: []cluster.Refusal{{Node: "b", Reason: "its prefix is node c's"}}},
			[]string{"refused b: its prefix is node c's"}},
		"a tunnel": {Status{Devices: []Device{{Name: "veil0", Kind: "kubeveil"}}},
			[]string{"tunnel veil0 (kubeveil) has no key yet", "tunnel veil0 (kubeveil) is down"}},
	} {

		t.Run(name, func(t *testing.T) {
			if d := cmp.Diff(tt.want, tt.status.Faults(now)); d != "" {
				t.Error(d)
			}
		})
	}
}
