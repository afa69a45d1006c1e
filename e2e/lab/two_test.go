package lab_test

import (
	"testing"

	"github.com/kubeveil/kubeveil/e2e/lab"
)

// Two nodes of Kubeveil with a pod each: everything arrives, both ways, and nothing of it is
// seen on the network.
func TestLabTwoNodes(t *testing.T) {
	for _, family := range []lab.Family{lab.IPv4, lab.IPv6, lab.Dual} {
		t.Run(string(family), func(t *testing.T) {
			ctx, l := newLab(t, lab.Options{Family: family})
			pods := echoPods(ctx, t, l)
			talk(ctx, t, pods[0], pods[1])
			for _, p := range pods {
				if err := p.Check(ctx); err != nil {
					t.Error(err)
				}
				if err := p.Del(ctx); err != nil {
					t.Error(err)
				}
			}
			result, err := l.Finish()
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d frames: %v", result.Frames, result.Kinds)
			if err := result.Err(); err != nil {
				t.Error(err)
			}
		})
	}
}
