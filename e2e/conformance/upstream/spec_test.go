package upstream

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeveil/kubeveil/internal/filetest"
)

func TestParseSpecs(t *testing.T) {
	for name, tt := range map[string]struct {
		printed string
		want    []string
		wantErr string
	}{
		"those of the group": {
			"The following spec names can be used:\n    a/b.go:12: [sig-apps] CronJob works\n    " +
				"c.go:3: [sig-network] DNS works [Conformance]\n    c.go:9: [sig-network] DNS " +
				"fails\n\n",
			[]string{"[sig-network] DNS works [Conformance]", "[sig-network] DNS fails"}, "",
		},
		"a name with a colon": {"    c.go:3: [sig-network] Checks: udp\n",
			[]string{"[sig-network] Checks: udp"}, ""},
		"nothing": {"", nil, "none of [sig-network]"},
		"none of the group": {"    a.go:1: [sig-apps] [sig-network] works\n", nil,
			"none of [sig-network]"},
		"without a place": {"[sig-network] DNS works\n", nil, "none of [sig-network]"},
		"one twice": {"  c.go:3: [sig-network] a\n  c.go:4: [sig-network] a\n", nil,
			`two specs are named "[sig-network] a"`},
		"a line without end": {"  c.go:3: [sig-network] " + strings.Repeat("a", 2<<20), nil,
			"token too long"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseSpecs([]byte(tt.printed), Group)
			if (err == nil) != (tt.wantErr == "") ||
				err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("error %v, want %q", err, tt.wantErr)
			}

			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func FuzzParseSpecs(f *testing.F) {
	f.Add([]byte("    a/b.go:12: [sig-network] DNS works [Conformance]\n"))
	f.Add([]byte("x.go:1: [sig-network]\n\n y.go:2: [sig-network] \n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		specs, err := ParseSpecs(b, Group)
		if err != nil {
			return
		}
		expr, err := regexp.Compile(Focus(specs))
		if err != nil {
			return // Names that are not UTF-8: regexp and Ginkgo refuse them.
		}
		for _, s := range specs {
			if !expr.MatchString("Kubernetes e2e suite " + s) {
				t.Errorf("%q does not match %s", s, expr)
			}
		}
	})
}

func TestFocusMatchesNoOther(t *testing.T) {
	b := filetest.Read(t, "../testdata/specs.txt")
	specs := strings.Split(strings.TrimSpace(string(b)), "\n")
	for i := 0; i < len(specs); i += 7 {
		expr := regexp.MustCompile(Focus(specs[i : i+1]))
		for j, s := range specs {
			if got := expr.MatchString("Kubernetes e2e suite " + s); got != (i == j) {
				t.Errorf("focus of %q on %q: %v", specs[i], s, got)
			}
		}
	}
}

func TestAlone(t *testing.T) {
	for spec, want := range map[string]bool{
		"[sig-network] a":                       false,
		"[sig-network] a [Serial]":              true,
		"[sig-network] a [Disruptive] b":        true,
		"[sig-network] serial is only a word x": false,
	} {
		if got := Alone(spec); got != want {
			t.Errorf("%q: %v", spec, got)
		}
	}
}
