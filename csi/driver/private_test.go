package driver

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/kubeveil/kubeveil/csi/mount"
)

// Mounts that stay in the driver's container are refused, because a pod would write in clear to the
// empty folder below the mount.
func TestMountsThatDoNotReachTheHostAreRefused(t *testing.T) {
	for name, device := range map[string]bool{"file system": false, "device": true} {
		t.Run(name, func(t *testing.T) {
			c := mounted("")
			if device {
				c = block()
			}

			m, d := running(t, c, nil)
			m.mounts.Private = true
			for what, err := range map[string]error{"stage": m.stage(d, c),
				"publish": m.publish(d, c, "second", false)} {
				if Code(err) != codes.FailedPrecondition || !errors.Is(err, mount.ErrPrivate) ||
					!strings.Contains(err.Error(), pvc) {
					t.Errorf("%s: %v, %v", what, Code(err), err)
				}
			}

			d.PrivateMounts = true
			if err := m.publish(d, c, "second", false); err != nil {
				t.Errorf("with private mounts allowed: %v", err)
			}

			m.mounts.Private, d.PrivateMounts = true, false
			if err := errors.Join(m.unpublish(d, "second"), m.unpublish(d, "target"),
				m.unstage(d)); err != nil {
				t.Errorf("ended: %v", err)
			}
		})
	}
}
