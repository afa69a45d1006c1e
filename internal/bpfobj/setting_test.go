package bpfobj

import (
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/bpf"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

func TestSetRefusesSettingsThatTheProgramsDoNotHave(t *testing.T) {
	for _, tc := range []struct {
		name     string
		settings map[string]any
		want     string // in the error; "" means that there is no error
	}{
		{"all known", map[string]any{"pod_mark": uint32(1), "probe_port": uint32(2)}, ""},
		{"none", nil, ""},
		{"unknown", map[string]any{"pod_mark": uint32(1), "pod_marks": uint32(1)},
			"set pod_marks: the programs have no such setting"},
		{"another size", map[string]any{"pod_mark": uint8(1)}, "set pod_mark: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			spec, err := bpf.LoadGuardEgress()
			errtest.Must(t, err)

			err = Set(spec, tc.settings)
			if tc.want == "" && err != nil ||
				tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Fatalf("the error is %v, want %q", err, tc.want)
			}

			if tc.want != "" {
				return
			}

			for name, want := range tc.settings {
				var got uint32
				if err := spec.Variables[name].Get(&got); err != nil || got != want {
					t.Errorf("%s is %d, %v; want %d", name, got, err, want)
				}
			}
		})
	}
}
