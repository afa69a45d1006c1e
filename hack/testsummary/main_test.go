package main

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

func TestSummarize(t *testing.T) {
	tests := []struct {
		name   string
		events string
		want   summary
	}{
		{
			name: "a pass, a failure and a skip with its reason",
			events: `{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestB","Output":"=== RUN TestB\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"  b_test.go:3: needs root: uid 1000\n"}
{"Action":"skip","Package":"p","Test":"TestB"}
{"Action":"fail","Package":"p","Test":"TestC"}
{"Action":"fail","Package":"p"}
`,
			want: summary{Passed: 1, Failed: 1,
				Skipped: []skip{{"p.TestB", "b_test.go:3: needs root: uid 1000"}}},
		},
		{
			name:   "a package that does not build is a failure",
			events: "{\"Action\":\"fail\",\"Package\":\"p\"}\n",
			want:   summary{Failed: 1, Skipped: []skip{}},
		},
		{
			name: "a run that was killed has failed in the test that was running",
			events: `{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestB"}
`,
			want: summary{Passed: 1, Failed: 1, Skipped: []skip{}},
		},
		{
			name: "a run that was killed between tests has failed in each package without end",
			events: `{"Action":"start","Package":"p"}
{"Action":"start","Package":"q"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Test":"TestA"}
`,
			want: summary{Passed: 1, Failed: 2, Skipped: []skip{}},
		},
		{
			name: "a test that died with its package counts once",
			events: `{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestA/one"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}
`,
			want: summary{Failed: 2, Skipped: []skip{}},
		},
		{
			name: "a package that passed all the same lost its test",
			events: `{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p"}
`,
			want: summary{Failed: 1, Skipped: []skip{}},
		},
		{
			name: "a go test that did not start has failed",
			events: `{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p"}
{"Action":"exit","Status":0}
{"Action":"exit","Status":1}
`,
			want: summary{Passed: 1, Failed: 1, Skipped: []skip{}},
		},
		{
			name: "a go test that was killed has failed, beside the test that was running",
			events: `{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"exit","Status":137}
`,
			want: summary{Failed: 2, Skipped: []skip{}},
		},
		{
			name:   "a package without tests is none",
			events: "{\"Action\":\"start\",\"Package\":\"p\"}\n{\"Action\":\"skip\",\"Package\":\"p\"}\n",
			want:   summary{Skipped: []skip{}},
		},
		{
			name:   "a last line without its end still counts",
			events: `{"Action":"pass","Package":"p","Test":"TestA"}`,
			want:   summary{Passed: 1, Skipped: []skip{}},
		},
	}

	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := report(strings.NewReader(tt.events), io.Discard, "")
			errtest.Must(t, err)
			tt.want.Flaky = []flaky{}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestSlowest(t *testing.T) {
	var events, out strings.Builder
	for i := range 2 * slow {
		fmt.Fprintf(&events,
			"{\"Action\":\"pass\",\"Package\":\"p\",\"Test\":\"Test%d\",\"Elapsed\":%d}\n", i, i)
	}
	events.WriteString(`{"Action":"pass","Package":"p","Test":"Test1/part","Elapsed":99}` + "\n" +
		`{"Action":"pass","Package":"p","Elapsed":99}` + "\n")
	events.WriteString(`{"Action":"output","Package":"p","Test":"TestQueued",` +
		`"Output":"    queue.go:80: waited 95.5 s for other labs\n"}` + "\n" +
		`{"Action":"pass","Package":"p","Test":"TestQueued","Elapsed":100}` + "\n")
	r := newRun(&out)
	errtest.Must(t, r.read(strings.NewReader(events.String())))
	r.slowest()
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")[1:] // after the line of the package
	if len(lines) != slow || lines[0] != "  19.0 s p.Test19" ||
		lines[slow-1] != "  10.0 s p.Test10" {
		t.Errorf("%q", lines)
	}
}
