package supervisor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/cluster"
)

func TestParseRequest(t *testing.T) {
	for _, tc := range []struct{ name, in, want string }{
		{"fine", `{"device":"veil0","mtu":1440}`, ""},
		{"smallest mtu", `{"device":"veil12","mtu":576}`, ""},
		{"no mtu", `{"device":"veil0"}`, "mtu 0 is not between"},
		{"mtu too small", `{"device":"veil0","mtu":575}`, "mtu 575 is not between"},
		{"largest mtu", `{"device":"veil0","mtu":65475}`, ""},
		{"packets larger than a datagram holds", `{"device":"veil0","mtu":65476}`,
			"mtu 65476 is not between 576 and 65475"},
		{"another device", `{"device":"eth0","mtu":1440}`, `want "veil" and a number`},
		{"a path", `{"device":"veil/../../x","mtu":1440}`, `want "veil" and a number`},
		{"no number", `{"device":"veil","mtu":1440}`, `want "veil" and a number`},
		{"too long a name", `{"device":"veil123456789012","mtu":1440}`, "at most 15"},
		{"fields of another version", `{"queue":{"count":3},"device":"veil0","mtu":1440}`, ""},
		{"two objects", `{"device":"veil0","mtu":1440}{}`, "text after the object"},
		{"too large", strings.Repeat(" ", maxRequest) + `{}`, "larger than 65536 bytes"},
		{"empty", ``, "EOF"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := ParseRequest([]byte(tc.in))
			if (err == nil) != (tc.want == "") ||
				err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("parse: %v, want %q", err, tc.want)
			}
		})
	}
}

func FuzzParseRequest(f *testing.F) {
	f.Add([]byte(`{"device":"veil0","mtu":1440}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		r, err := ParseRequest(in)
		if err == nil && (CheckName(r.Device) != nil || strings.ContainsAny(r.Device, "/.") ||
			r.MTU < cluster.MinMTU4 || r.MTU > 65475) {
			t.Errorf("accepted %+v", r)
		}
	})
}

func TestNextDelay(t *testing.T) {
	for _, tc := range []struct {
		name         string
		delay, lived time.Duration
		failures     int
		want         time.Duration
	}{
		{"after a long life", 0, time.Hour, 0, 0},
		{"the first short life", 0, 0, 1, 0},
		{"the second", 0, 0, 2, minDelay},
		{"the third", minDelay, 0, 3, 2 * minDelay},
		{"many", maxDelay, 0, 50, maxDelay},
		{"a long life after many", maxDelay, shortLife, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := nextDelay(tc.delay, tc.lived, tc.failures); got != tc.want {
				t.Errorf("delay %s, want %s", got, tc.want)
			}
		})
	}
}

func TestDirectoryOnADiskIsRefused(t *testing.T) {
	var st unix.Statfs_t
	if err := unix.Statfs("/", &st); err != nil || st.Type == unix.TMPFS_MAGIC {
		t.Fatalf("the root is on memory: %v", err)
	}
	dir := filepath.Join("/", "veil-wg-never-made")
	if err := prepareDir(dir, false); err == nil || !strings.Contains(err.Error(), "--trust-disk") {
		t.Errorf("prepare: %v, want a refusal", err)
	}
	if _, err := os.Stat(dir); err == nil {
		os.Remove(dir)
		t.Error("the refused directory was made")
	}
}
