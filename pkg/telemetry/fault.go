package telemetry

import (
	"fmt"
	"time"

	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// Faults returns a sentence for each tunnel that does not work, each peer that cannot be reached,
// and each refused claim. veild puts them into its Problems, so that the status of the node, the
// status of the cluster, the metric kubeveil_problems and the exit status agree.
func (s Status) Faults(now time.Time) (faults []string) {
	for _, d := range s.Devices {
		if d.PublicKey == (wgkey.Public{}) {
			faults = append(faults, fmt.Sprintf("tunnel %s (%s) has no key yet", d.Name, d.Kind))
		}
		if !d.Up {
			faults = append(faults, fmt.Sprintf("tunnel %s (%s) is down", d.Name, d.Kind))
		}
	}

	reached, seen := map[string]bool{}, map[string]bool{}
	for _, p := range s.Peers {
		reached[p.Name] = reached[p.Name] || p.State == PeerUp || p.State == PeerIdle
	}
	for _, p := range s.Peers {
		if reached[p.Name] || seen[p.Name] {
			continue
		}
		seen[p.Name] = true
		switch p.State {
		case PeerSilent:
			faults = append(faults, fmt.Sprintf("peer %s has not answered for %s: it is down, or "+
				"UDP does not pass", p.Name, silentFor(p, now).Round(time.Second)))
		case PeerKeyless:
			faults = append(faults, fmt.Sprintf("peer %s has no key: start veild there", p.Name))
		}
	}

	for _, r := range s.Refused {
		faults = append(faults, fmt.Sprintf("refused %s: %s", r.Node, r.Reason))
	}
	return faults
}
