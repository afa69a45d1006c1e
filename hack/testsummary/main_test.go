package main

import (
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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
			want: summary{Passed: 1, Failed: 1, Skipped: []skip{{"p.TestB", "b_test.go:3: needs root: uid 1000"}}},
		},
		{
			name:   "a package that does not build is a failure",
			events: "{\"Action\":\"fail\",\"Package\":\"p\"}\n",
			want:   summary{Failed: 1, Skipped: []skip{}},
		},
		{
			name:   "a last line without its end still counts",
			events: `{"Action":"pass","Package":"p","Test":"TestA"}`,
			want:   summary{Passed: 1, Skipped: []skip{}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := summarize(strings.NewReader(tt.events), io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}
