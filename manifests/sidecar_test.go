package manifests_test

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/kubeveil/kubeveil/internal/manifesttest"
)

// The requests of a DaemonSet's side-cars to the API server grow with the number of nodes. So
// side-cars that elect a leader or look for room use the periods that docs/design/0014 assumes.
func TestSidecarsAskSeldom(t *testing.T) {
	wanted := map[string]map[string]time.Duration{
		"--leader-election=true": {
			"leader-election-lease-duration": 180 * time.Second,
			"leader-election-renew-deadline": 120 * time.Second,
			"leader-election-retry-period":   60 * time.Second,
		},
		"--enable-capacity=true": {"capacity-poll-interval": 5 * time.Minute},
	}
	held := map[string]bool{}

	objects, _ := everyManifest(t)
	for _, m := range objects {
		if m.Object.GetKind() != "DaemonSet" {
			continue
		}
		var ds appsv1.DaemonSet
		typed(t, m.Object, &ds)
		for _, c := range ds.Spec.Template.Spec.Containers {
			for _, arg := range c.Args {
				for flag, want := range wanted[arg] {
					held[arg] = true
					if got := durationOf(t, m, c.Args, flag); got != want {
						t.Errorf("%s: container %s: --%s=%v, want %v", m.Path, c.Name, flag, got,
							want)
					}
				}
			}
		}
	}

	for arg := range wanted {
		if !held[arg] {
			t.Errorf("no side-car has %s: the sum in docs/design/0014 is another", arg)
		}
	}
}

// durationOf returns the value of a flag in args, or 0.
func durationOf(t *testing.T, m manifesttest.Manifest, args []string, flag string) time.Duration {
	t.Helper()
	for _, arg := range args {
		value, ok := strings.CutPrefix(arg, "--"+flag+"=")
		if !ok {
			continue
		}
		d, err := time.ParseDuration(value)
		if err != nil {
			t.Fatalf("%s: %s: %v", m.Path, arg, err)
		}
		return d
	}
	return 0
}
