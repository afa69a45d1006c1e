package upstream

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
)

func TestParseGoTest(t *testing.T) {
	b := filetest.Read(t, "testdata/gotest.txt")
	got, err := ParseGoTest(bytes.NewReader(b), "TestConformance")
	errtest.Must(t, err)

	const took = 1500 * time.Millisecond
	want := []Outcome{
		{Name: "CNPA/Should_support_an_'allow'_policy;_ok", Status: Passed, Elapsed: took},
		{Name: "CNPA/Should_deny", Status: Failed, Elapsed: took,
			Message: "Expected connection to fail from a/b to 10.0.0.1, but instead it " +
				"successfully connected.; Condition never satisfied Test: " +
				"TestConformance/CNPA/Should_deny"},
		{Step: "CNPA", Status: Failed, Elapsed: took,
			Message: "Applying base/a.yaml; Deleting a ClusterNetworkPolicy"},
		{Step: "CNPB", Status: Skipped, Elapsed: took,
			Message: "Skipping CNPB: suite does not support X"},
		{Name: "CNPC/Should_pass", Status: Passed, Elapsed: took},
		{Step: "CNPC", Status: Failed, Elapsed: took, Message: "error deleting resource"},
		{Step: "TestConformance", Status: Failed, Elapsed: took,
			Message: "Test Setup: Applying base manifests"},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Outcome{}, "Log")); diff != "" {
		t.Error(diff)
	}
	if !strings.Contains(got[1].Log, "/upstream/egress.go:60") {
		t.Errorf("log of what failed: %q", got[1].Log)
	}
}

func TestParseGoTestOfWhatEndedEarly(t *testing.T) {
	for name, tt := range map[string]struct {
		printed string
		want    []Status
		wantErr string
	}{
		"nothing":      {"", nil, "none has ended"},
		"no test":      {"flag provided but not defined: -x\n", nil, "none has ended"},
		"not its line": {"--- PASS: TestConformance/A/b (0.00s)\n", nil, "none has ended"},
		"a panic": {frame + "=== RUN   TestConformance/A/b\n" + frame +
			"--- PASS: TestConformance/A/b (0.01s)\n" + frame +
			"=== RUN   TestConformance/A/c\npanic: x\n", []Status{Passed}, ""},
		"half a line": {frame + "--- PASS: TestConformance/A/b (0.01s)\n" + frame +
			"--- PASS: TestConformance/A/c (0.0", []Status{Passed}, ""},
		"a line without end": {strings.Repeat("a", 2*maxLine), nil, "token too long"},
		"a year":             {frame + "--- PASS: A (99999999.00s)\n", nil, "none has ended"},
	} {
		t.Run(name, func(t *testing.T) {
			outcomes, err := ParseGoTest(strings.NewReader(tt.printed), "TestConformance")
			if (err == nil) != (tt.wantErr == "") ||
				err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("error %v, want %q", err, tt.wantErr)
			}
			var got []Status
			for _, o := range outcomes {
				got = append(got, o.Status)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func FuzzParseGoTest(f *testing.F) {
	b := filetest.Read(f, "testdata/gotest.txt")
	f.Add(b)
	f.Add([]byte(frame + "--- SKIP: TestConformance/A (0.00s)\n\xff.go:1:\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		outcomes, err := ParseGoTest(bytes.NewReader(b), "TestConformance")
		if err != nil {
			return
		}
		for _, o := range outcomes {
			if (o.Name == "") == (o.Step == "") || o.Elapsed < 0 || o.Status == "" ||
				(o.Status == Passed) != (o.Message == "") {
				t.Errorf("%+v", o)
			}
		}
	})
}
