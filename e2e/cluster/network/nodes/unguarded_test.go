package nodes

import (
	"testing"
)

func TestReleasesWithTCX(t *testing.T) {
	for release, want := range map[string]bool{"6.1.0-44-cloud-amd64": false, "6.5.13": false,
		"6.6.0": true, "6.12.57+deb13-cloud-amd64": true, "7.0-rc1": true, "5.15.0": false} {
		if got, err := hasTCX(release); err != nil || got != want {
			t.Errorf("Linux %s has tcx: %t, %v; want %t", release, got, err, want)
		}
	}
	for _, release := range []string{"", "6", "linux.6"} {
		if _, err := hasTCX(release); err == nil {
			t.Errorf("release %q is accepted", release)
		}
	}
}
