package keeper

import (
	"log/slog"
	"net/netip"
	"slices"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/feature"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// awayFeature returns the feature of a node whose API server cannot be reached.
func awayFeature() *Feature {
	cfg := config.Config{Node: "here", Policy: config.PolicyKubernetes}
	return NewFeature(FeatureOptions{Config: cfg, Source: awayServer{},
		Log: slog.New(slog.DiscardHandler)})
}

// A table that lacks nodes would take addresses from pods.
func TestFeatureWaitsForACompleteTable(t *testing.T) {
	f := awayFeature()
	node := func(name, addr, prefix string) cluster.Node {
		return cluster.Node{Name: name, Addresses: nettest.Addrs(addr),
			PodPrefixes: nettest.Prefixes(prefix)}
	}
	self := node("here", "198.18.0.1", "198.18.1.0/24")
	turn := feature.Turn{Table: cluster.Table{Self: &self,
		Peers:   []cluster.Node{node("there", "198.18.0.2", "198.18.2.0/24")},
		Keyless: []cluster.Node{node("keyless", "198.18.0.3", "198.18.3.0/24")}}}
	if err := f.Turn(turn); err != nil || f.keeper.prefixes != nil {
		t.Errorf("an incomplete table sets prefixes %v, %v", f.keeper.prefixes, err)
	}

	turn.Complete = true
	errtest.Must(t, f.Turn(turn))
	for name, want := range map[string][]netip.Prefix{"here": self.PodPrefixes,
		"there":   turn.Table.Peers[0].PodPrefixes,
		"keyless": turn.Table.Keyless[0].PodPrefixes} {
		if got := f.keeper.prefixes[name]; !slices.Equal(got, want) {
			t.Errorf("node %s owns %v, want %v", name, got, want)
		}
		if len(f.keeper.nodeAddrs[name]) != 1 {
			t.Errorf("node %s has addresses %v, want one", name, f.keeper.nodeAddrs[name])
		}
	}
}

func TestKernelChangesAreCompared(t *testing.T) {
	for name, c := range map[string]struct {
		change               feature.KernelChange
		attachments, compare bool
	}{
		"none":              {},
		"a pod":             {feature.KernelChange{Pods: true}, true, false},
		"the table":         {feature.KernelChange{PolicyTable: true}, false, true},
		"lost notification": {feature.KernelChange{PolicyTable: true, Pods: true}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := awayFeature()
			f.KernelChanged(c.change)
			if k := f.keeper; k.attachments != c.attachments || k.compare != c.compare {
				t.Errorf("attachments %t, table %t, want %t, %t", k.attachments, k.compare,
					c.attachments, c.compare)
			}
		})
	}
}

func TestFeatureThatIsOffDoesNothing(t *testing.T) {
	f := NewFeature(FeatureOptions{Config: config.Config{Policy: config.PolicyNone}})
	var s telemetry.Status
	f.Status(&s)
	f.KernelChanged(feature.KernelChange{PolicyTable: true, Pods: true})
	if err := f.Turn(feature.Turn{Complete: true}); err != nil {
		t.Error(err)
	}
	if err := f.Run(t.Context()); err != nil || s.Policy != nil || len(s.Problems) != 0 {
		t.Errorf("%v, status %+v", err, s)
	}
}
