package nodes

import (
	"testing"
)

func TestPublishedKey(t *testing.T) {
	key := func(s string) any { return map[string]any{"publicKey": s} }
	for _, c := range []struct {
		name, want string
		keys       []any
	}{
		{"one", "a", []any{key("a")}},
		{"two, the newest counts", "b", []any{key("a"), key("b")}},
		{"none", "", nil},
		{"an empty one", "", []any{key("")}},
		{"not a key", "", []any{7}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := publishedKey(map[string]any{"spec": map[string]any{"keys": c.keys}})
			if got != c.want || (err == nil) != (c.want != "") {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

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
