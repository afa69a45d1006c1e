package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb/verbtest"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/telemetry/admin"
)

func flowsOf(alarms int) telemetry.Flows {
	f := telemetry.Flows{Alarms: alarms, Outer: 3, Notes: []string{"Not seen: row 11."},
		Count:   map[telemetry.FlowClass]int{"tunnel": 2500, "outside": 1},
		LeftOut: map[telemetry.FlowClass]int{"tunnel": 499},
		Flows: []telemetry.Flow{
			{Class: "outside", Row: 3, Link: "eth0", Protocol: "tcp", Source: "conntrack",
				Client: netip.MustParseAddr("2001:db8::9"), ClientPort: 4000,
				Server: netip.MustParseAddr("fd42:1::5"), ServerPort: 80, ServerPod: "shop/web-0",
				Original: netip.MustParseAddr("fd00::1"), OriginalPort: 30080, Replied: true},
			{Class: "refused", Protocol: "icmp", Reason: "no route: no route to host", Source: "drops",
				Dropped: "spoofed", DroppedAt: time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC),
				Client: netip.MustParseAddr("198.18.1.5"), Server: netip.MustParseAddr("198.18.9.9")},
		}}
	if alarms > 0 {
		f.Flows[0].Alarm, f.Flows[0].Row = true, 0
	}
	return f
}

// flowDaemon is a veild whose page of flows returns f. It stores the query of the last request.
func flowDaemon(t *testing.T, f telemetry.Flows, query *atomic.Value) string {
	t.Helper()
	return verbtest.Daemon(t, telemetry.Status{}, true, map[string]admin.Page{
		telemetry.FlowsPath: func(r *http.Request) (any, error) {
			query.Store(r.URL.Query().Encode())
			if r.FormValue("class") == "wrong" {
				return nil, errors.New("no class is called wrong: write one of tunnel, local")
			}
			return f, nil
		}})
}

func TestFlowsVerb(t *testing.T) {
	var query atomic.Value
	well, alarm := flowDaemon(t, flowsOf(0), &query), flowDaemon(t, flowsOf(2), &query)
	for name, c := range map[string]asking{
		"all": {well, nil, []string{"CLASS    ROW  FROM",
			"outside  3    [2001:db8::9]:4000  shop/web-0 [fd42:1::5]:80  [fd00::1]:30080  tcp",
			"198.18.9.9                 -                icmp      -     -     no route",
			"no route to host; a packet was dropped for spoofed at 11-29 12:00:00.000Z",
			"  2500 in the tunnel; 499 of them are not shown", "     0 host to host, in clear\n",
			"     3 more connections carry the tunnels themselves", "Not seen: row 11."}, "",
			verb.ExitOK},
		"an alarm": {alarm, nil, []string{"outside  NONE", "ALARM: 2 connections of pods"}, "",
			verb.ExitWrong},
		"in clear": {well, []string{"--clear"}, []string{"     1 outside, in clear"},
			"class=outside&class=host", verb.ExitOK},
		"chosen": {well, []string{"--class", "tunnel,refused", "--pod", "shop/web-0"}, nil,
			"class=tunnel&class=refused&pod=shop%2Fweb-0", verb.ExitOK},
		"both":               {well, []string{"--clear", "--class", "host"}, nil, "", verb.ExitUsage},
		"an unknown class":   {well, []string{"--class", "wrong"}, nil, "class=wrong", verb.ExitWrong},
		"no veild":           {"/nowhere/s", nil, nil, "", verb.ExitNoDaemon},
		"programs, an alarm": {alarm, []string{"-o", "json"}, []string{`"alarm":true`}, "", verb.ExitWrong},
		"programs, all is well": {well, []string{"-o", "json"}, []string{`"row":3`,
			`"leftOut":{"tunnel":499}`}, "", verb.ExitOK},
	} {
		t.Run(name, func(t *testing.T) { c.check(t, "flows", &query) })
	}

	err := run(t.Context(), []string{"flows", "--class", "wrong", "--socket", well}, io.Discard,
		io.Discard)
	if err == nil || !strings.Contains(err.Error(), "write one of tunnel, local") {
		t.Errorf("%v", err)
	}
}

// With -o json, the output has a line for each connection and a line for the summary.
func TestFlowsAsLines(t *testing.T) {
	var query atomic.Value
	var out bytes.Buffer
	err := run(t.Context(), []string{"flows", "-o", "json", "--socket",
		flowDaemon(t, flowsOf(0), &query)}, &out, io.Discard)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	var f telemetry.Flow
	if err != nil || len(lines) != 3 || json.Unmarshal([]byte(lines[0]), &f) != nil ||
		f.ServerPod != "shop/web-0" || !strings.HasPrefix(lines[2], `{"summary":{`) ||
		strings.Contains(lines[2], `"flows"`) {
		t.Errorf("%v: %s", err, &out)
	}
}
