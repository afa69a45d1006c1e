package audit

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/audit/result"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/cluster"
	"github.com/kubeveil/kubeveil/docs"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/remote"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// Each exception of the document is read completely, and has a judgement.
func TestExceptionsOfTheDocument(t *testing.T) {
	rows := exceptions(docs.Security)
	if len(rows) != len(judgements) || len(rows) < 17 {
		t.Fatalf("%d rows, %d judgements", len(rows), len(judgements))
	}
	for i, e := range rows {
		if e.number != i+1 || judgements[e.number] == nil {
			t.Errorf("row %d is number %d", i+1, e.number)
		}
		for _, cell := range []string{e.clear, e.whom, e.shut} {
			if cell == "" || strings.ContainsAny(cell, "`|") || strings.Contains(cell, "](") {
				t.Errorf("number %d has the cell %q", e.number, cell)
			}
			if result.Clean(cell) != cell {
				t.Errorf("number %d has a cell of %d bytes, which is cut", e.number, len(cell))
			}
		}
	}
}

func TestExceptionsByConfiguration(t *testing.T) {
	strict := func(c *config.Config) {
		c.Masquerade, c.LinkLocalOutside = false, nil
		c.NodeRanges = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
		c.Outside = []netip.Prefix{}
	}
	for name, tt := range map[string]struct {
		change func(*config.Config)
		with   setting
		want   string // numbers and states
	}{
		"as it is by default": {func(*config.Config) {}, setting{},
			"1 open, 8 open, 14 closed, 16 closed, 17 open"},
		"closed":         {strict, setting{}, "1 closed, 8 closed, 16 closed, 17 closed"},
		"unread":         {strict, setting{unread: "forbidden"}, "1 not known, 2 open, 8 not known"},
		"volumes":        {strict, setting{volumes: true}, "14 open, 15 open"},
		"pods unread":    {strict, setting{podsUnread: "forbidden"}, "14 not known"},
		"Multus":         {strict, setting{groups: []string{"k8s.cni.cncf.io"}}, "11 open"},
		"without Multus": {strict, setting{}, "11 not known"},
		"roaming":        {func(c *config.Config) { c.Tunnel.Roaming = true }, setting{}, "16 open"},
		"an old neighbor": {strict, setting{sources: map[string]string{"a": "believed nodes",
			"b": "anywhere: node a has a version"}}, "16 open"},
	} {
		t.Run(name, func(t *testing.T) {
			tt.with.cfg, tt.with.from = config.Default(), "the ConfigMap"
			tt.change(&tt.with.cfg)

			got := ""
			for _, row := range judgeExceptions(tt.with).Rows {
				got += ", " + row.Cells[0] + " " + row.Word
			}
			for want := range strings.SplitSeq(tt.want, ", ") {
				if !strings.Contains(got+",", ", "+want+",") {
					t.Errorf("no %q in%s", want, got)
				}
			}
		})
	}
}

func TestTallyIsBounded(t *testing.T) {
	tl := tally{node: "n", field: "class"}
	write := func(text string) {
		t.Helper()
		errtest.Must(t, errtest.Of(tl.Write([]byte(text))))
	}
	write(`{"class":"tunnel"}` + "\n" + `{"cla`)
	write(`ss":"tunnel"}` + "\nnot JSON\n[]\n{}\n" + `{"class":7}` + "\n\n")
	write(`{"problem":"no module"}` + "\n" + `{"skipped":{"a":1}}` + "\n")
	if tl.counts["tunnel"] != 2 || tl.malformed != 4 || len(tl.samples) != 2 ||
		string(tl.samples[0]) != `{"class":"tunnel","node":"n"}` {
		t.Errorf("%+v", tl)
	}

	write(`{"summary":{"count":{"tunnel":7}}}` + "\n")
	if string(tl.summary) != `{"count":{"tunnel":7}}` || tl.malformed != 4 {
		t.Errorf("the summary: %s, %d malformed", tl.summary, tl.malformed)
	}

	write(strings.Repeat("x", 10*maxLine))
	write(strings.Repeat("x", maxLine) + "\n")
	if tl.malformed != 5 || len(tl.rest) > 0 {
		t.Errorf("a long line: %d malformed, %d bytes kept", tl.malformed, len(tl.rest))
	}
	for i := range 1000 {
		write(fmt.Sprintf(`{"class":"%d"}`+"\n", i))
	}
	if len(tl.counts) > maxKinds+1 || tl.counts[overflowKind] != 1000-maxKinds+1 {
		t.Errorf("%d kinds, %d others", len(tl.counts), tl.counts[overflowKind])
	}

	var err error
	for err == nil {
		_, err = tl.Write(make([]byte, 1<<20))
	}
	if a := newAnswer(tl, "flows", nil); !errors.Is(err, errCut) ||
		!strings.Contains(a.err, "longer than 64 MiB") {
		t.Errorf("%v, %q", err, a.err)
	}
}

func TestAnswersOfVerbs(t *testing.T) {
	some := tally{node: "n", bytes: 5}
	for name, tt := range map[string]struct {
		tally tally
		err   error
		want  string
	}{
		"well": {some, nil, ""},
		"bad":  {some, &remote.CommandError{Status: 1}, ""},
		"an older one": {tally{}, &remote.CommandError{Status: 2,
			Stderr: `veilctl: unknown verb "flows"`}, "this veild has no flows"},
		"away": {tally{}, &remote.CommandError{Status: 3,
			Stderr: "veilctl: veild does not answer"}, "veild does not answer"},
		"mute":        {tally{}, &remote.CommandError{Status: 1}, "exit code 1"},
		"unreachable": {tally{}, errors.New("no answer in time"), "no answer in time"},
	} {
		t.Run(name, func(t *testing.T) {
			if a := newAnswer(tt.tally, "flows", tt.err); (a.err == "") != (tt.want == "") ||
				!strings.Contains(a.err, tt.want) {
				t.Errorf("%q, want %q", a.err, tt.want)
			}
		})
	}
}

func TestFlowsInClearAreBad(t *testing.T) {
	answer := func(node, summary string) lineAnswer {
		return lineAnswer{tally: tally{node: node, counts: map[string]int{"tunnel": 1},
			summary: []byte(summary)}}
	}
	got := fmt.Sprint(judgeFlows([]lineAnswer{
		answer("n1", `{"count":{"tunnel":4,"host":1}}`),
		answer("n2", `{"count":{"tunnel":2,"outside":3},"alarms":2}`),
		answer("n3", `{"notes":["It sees no flows of hosts."]}`), answer("n4", ""),
	}).Rows)
	for _, want := range []string{"{bad in clear [n2 2 ", "{note  [n3   It sees no flows of hosts.]",
		"{note  [outside, in clear 3 1 ]", "{note  [host to host, in clear 1 1 ]",
		"{good  [in the tunnel 7 3 ]", "{not looked at  [n4   its answer has no summary, so it was cut off]"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in %s", want, got)
		}
	}
}

// Each counter of dropped packets is in the report. Where none was read, no number is invented.
func TestReportHasAllCountersOfDrops(t *testing.T) {
	got := dropsOf(&telemetry.Status{
		Guard:       telemetry.Guard{Drops: []telemetry.Drop{{Name: "dst_in_range", Packets: 7}}},
		Connections: &telemetry.Connections{Dropped: 3},
		Services: &telemetry.Services{Refused: []telemetry.ServiceCount{
			{Where: "socket", What: "no_backend", Count: 4},
			{Where: "packet", What: "no_backend", Count: 5}}},
		Policy:  &telemetry.Policy{Drops: map[string]uint64{"policy_egress": 6}},
		Devices: []telemetry.Device{{Name: "veil0", Drops: map[string]uint64{"forged": 2}}}})
	want := map[string]uint64{"dst_in_range": 7, "pod_connections": 3, "service_no_backend": 9,
		"policy_egress": 6, "veil-wg forged": 2}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}

	rows := judgeDrops([]lineAnswer{{tally: tally{node: "n", counts: map[string]int{"spoofed": 2}}}},
		cluster.Report{}, cluster.Report{}).Rows
	if got := fmt.Sprintf("%q", rows[0].Cells); len(rows) != 1 ||
		got != `["spoofed" "" "" "2" "a node sent samples and no counter"]` {
		t.Errorf("rows %+v", rows)
	}
}

func TestLeaksOfANode(t *testing.T) {
	for name, tt := range map[string]struct {
		text string
		err  error
		want result.Verdict
		why  string
	}{
		"well":   {`{"links":["eth0"],"seconds":60,"frames":9,"tunnel":8}`, nil, result.Good, ""},
		"a leak": {`{"seconds":60,"frames":9,"leaks":1,"dropped":3}`, nil, result.Bad, ""},
		"unguarded": {`{"links":["eth0","eth1"],"unguarded":["eth1"],"seconds":60,"frames":9}`,
			nil, result.Note, ""},
		"unguarded, lost frames": {`{"unguarded":["eth1"],"seconds":60,"frames":9,"dropped":3}`,
			nil, result.Unseen, "3 frames were lost"},
		"unread": {`{"links":["eth0"],"unread":["eth1"],"seconds":60,"frames":9}`,
			nil, result.Unseen, "did not read eth1"},
		"a leak, unread": {`{"unread":["eth1"],"seconds":60,"frames":9,"leaks":1}`, nil, result.Bad, ""},
		"lost frames":    {`{"seconds":60,"frames":9,"dropped":3}`, nil, result.Unseen, "3 frames were lost"},
		"blind":          {`{"seconds":60}`, nil, result.Unseen, "no frame was seen"},
		"too short":      {`{"seconds":6,"frames":9}`, nil, result.Unseen, "only 6 s"},
		"an error":       {"veilctl: veild does not answer", nil, result.Unseen, "veild does not answer"},
		"nothing":        {"", errors.New("its pod was ended"), result.Unseen, "its pod was ended"},
		"cut":            {`{"seconds":60,"frames":9,"links":["`, nil, result.Unseen, "seconds"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &result.Section{Head: make([]string, 6)}
			judgeLeaks(s, "n", []byte(tt.text), tt.err, time.Minute)
			if r := s.Rows[0]; r.Verdict != tt.want || !strings.Contains(r.Why, tt.why) ||
				(r.Why == "") != (tt.why == "") {
				t.Errorf("%+v", r)
			}
		})
	}

	s := &result.Section{Head: make([]string, 6)}
	judgeLeaks(s, "n", []byte(`{"leaks":1,"examples":[{"link":"eth0","bytes":"c2VjcmV0"}]}`), nil,
		time.Minute)
	if len(s.Samples) != 1 || strings.Contains(string(s.Samples[0]), "c2VjcmV0") {
		t.Errorf("a sample has payload: %s", s.Samples)
	}
}
