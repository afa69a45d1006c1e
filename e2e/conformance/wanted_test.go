package conformance

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeveil/kubeveil/e2e/conformance/upstream"
)

// A selection without specs is an error before a cluster is made.
func TestWanted(t *testing.T) {
	program := fakeProgram(t,
		`[ "$1" = --list-tests ] && printf '  a.go:1: %s\n' '[sig-network] DNS works' '[sig-network] DNS fails' '[sig-network] Services work' '[sig-apps] DNS'`)
	for name, tt := range map[string]struct {
		focus, skip string
		want        []string
		wantErr     string
	}{
		"all": {want: []string{"[sig-network] DNS works",
			"[sig-network] DNS fails", "[sig-network] Services work"}},
		"some": {focus: "DNS", skip: "fails",
			want: []string{"[sig-network] DNS works"}},
		"a mistyped focus": {focus: "Sevices",
			wantErr: `focus "Sevices" leaves none of the 3 specs of [sig-network]: ` + "`" +
				program + " --list-tests`"},
		"a skip of what is left": {focus: "DNS", skip: "DNS",
			wantErr: `focus "DNS" and skip "DNS" leaves none`},
	} {
		t.Run(name, func(t *testing.T) {
			o := RunConfig{Program: program, Suite: Suite{Group: upstream.Group}}
			if tt.focus != "" {
				o.Focus = regexp.MustCompile(tt.focus)
			}
			if tt.skip != "" {
				o.Skip = regexp.MustCompile(tt.skip)
			}

			got, err := o.Wanted(t.Context())
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

// A table with reasons for specs that the upstream no longer has is an error.
func TestWantedOfAnotherUpstream(t *testing.T) {
	program := fakeProgram(t, `echo '  a.go:1: [sig-network] renamed'`)
	if _, err := (RunConfig{Program: program}).Wanted(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "matches no spec") {
		t.Errorf("error %v", err)
	}
}
