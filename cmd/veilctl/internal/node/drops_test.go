package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb/verbtest"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/telemetry/admin"
)

// dropDaemon is a veild whose page of drops returns the result of d.
func dropDaemon(t *testing.T, d func(r *http.Request) (telemetry.Drops, error)) string {
	t.Helper()
	return verbtest.Daemon(t, telemetry.Status{}, true, map[string]admin.Page{
		telemetry.DropsPath: func(r *http.Request) (any, error) { return d(r) }})
}

func dropped() telemetry.Drops {
	began := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	return telemetry.Drops{Before: 12, Last: 9, DropSamples: telemetry.DropSamples{Since: began,
		Skipped: map[string]uint64{"policy_ingress": 40}},
		Tunnels: map[string]uint64{"wrong_source": 3, "no_route": 1},
		Packets: []telemetry.DroppedPacket{
			{Number: 7, Time: began.Add(time.Second), Reason: "policy_ingress", In: "veil0",
				Out: "vpod0", SrcPod: "shop/far", DstPod: "shop/web-0",
				Src: netip.MustParseAddr("fd42:1::9"), Dst: netip.MustParseAddr("fd42:1::5"),
				SrcPort: 4000, DstPort: 80, Protocol: "tcp", Length: 80, Peer: "node-2",
				Policies: []string{"shop/deny"}, MorePolicies: 3, Rule: "no rule of these allows it"},
			{Number: 9, Time: began.Add(time.Minute), Reason: "ip_version", In: "eth0"},
		}}
}

// asking is a call of a verb that reads a page of veild: what it prints, the page's query ("" means
// any), and the exit status.
type asking struct {
	socket string
	args   []string
	want   []string
	query  string
	status int
}

// check runs the verb. query has the last query of a page.
func (c asking) check(t *testing.T, name string, query *atomic.Value) {
	t.Helper()
	var out bytes.Buffer
	err := run(t.Context(), append([]string{name, "--socket", c.socket}, c.args...), &out, io.Discard)
	if got := verb.ExitStatus(err); got != c.status {
		t.Errorf("exit status %d (%v), want %d", got, err, c.status)
	}
	for _, want := range c.want {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
	if got, _ := query.Load().(string); c.query != "" && got != c.query {
		t.Errorf("asked %s, want %s", got, c.query)
	}
}

func TestDropsVerb(t *testing.T) {
	var query atomic.Value
	daemon := dropDaemon(t, func(r *http.Request) (telemetry.Drops, error) {
		query.Store(r.URL.Query().Encode())
		if r.FormValue("reason") == "spoofed" {
			return telemetry.Drops{}, errors.New("no reason is called spoofed: write one of a, b")
		}
		return dropped(), nil
	})
	silent := dropDaemon(t, func(*http.Request) (telemetry.Drops, error) {
		return telemetry.Drops{DropSamples: telemetry.DropSamples{Problem: "no module"}}, nil
	})

	for name, c := range map[string]asking{
		"all": {daemon, nil, []string{
			"veild began at 11-29 12:00:00.000Z; 12 packets dropped earlier are only", "TIME (UTC) ",
			"veil-wg only counts what it drops. Since it began: 1 for no_route, 3 for wrong_",
			"11-29 12:00:01.000Z  policy_ingress  shop/far [fd42:1::9]:4000  shop/web-0 [",
			"tcp", "veil0  vpod0  node-2  shop/deny and 3 more: no rule of these allows it",
			"ip_version      -",
			"Not shown: 40 packets of this node, of all pods, dropped for policy_ingress since 11-29 " +
				"12:00:00.000Z"}, "after=0",
			verb.ExitOK},
		"chosen": {daemon, []string{"--pod", "shop/web-0", "--reason", "policy_ingress"}, nil,
			"after=0&pod=shop%2Fweb-0&reason=policy_ingress", verb.ExitOK},
		"a reason that does not exist": {daemon, []string{"--reason", "spoofed"}, nil,
			"after=0&reason=spoofed", verb.ExitWrong},
		"nothing is sampled":   {silent, nil, []string{"only counted, not shown: no module"}, "", verb.ExitOK},
		"a time in the future": {daemon, []string{"--since=-1m"}, nil, "", verb.ExitUsage},
		"no veild":             {"/nowhere/s", nil, nil, "", verb.ExitNoDaemon},
	} {
		t.Run(name, func(t *testing.T) { c.check(t, "drops", &query) })
	}

	err := run(t.Context(), []string{"drops", "--reason", "spoofed", "--socket", daemon},
		io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "write one of a, b") {
		t.Errorf("%v", err)
	}
}

// With -o json, the output has a line for each packet, and lines about packets that are missing.
func TestDropsAsLines(t *testing.T) {
	daemon := dropDaemon(t, func(r *http.Request) (telemetry.Drops, error) {
		d := dropped()
		d.Problem = "no module"
		if d.More = r.FormValue("after") == "0"; d.More {
			d.Packets, d.Last = d.Packets[:1], 7
		} else {
			d.Packets = d.Packets[1:]
		}
		return d, nil
	})
	var out bytes.Buffer
	if err := run(t.Context(), []string{"drops", "-o", "json", "--socket", daemon}, &out,
		io.Discard); err != nil {
		t.Fatal(err)
	}

	var got []string
	for line := range strings.Lines(out.String()) {
		var fields struct {
			Reason, Problem string
			DstPod          string
			Gap             int
			Skipped         map[string]int
			Tunnels         map[string]int
		}
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Errorf("%v: %s", err, line)
		}
		got = append(got, fmt.Sprint(fields))
	}
	want := []string{"{ no module  0 map[] map[]}", "{   12 map[] map[]}",
		"{   0 map[] map[no_route:1 wrong_source:3]}", "{policy_ingress  shop/web-0 0 map[] map[]}",
		"{ip_version   0 map[] map[]}", "{   0 map[policy_ingress:40] map[]}"}
	if !slices.Equal(got, want) {
		t.Errorf("lines %q, want %q", got, want)
	}
}

// Each packet is printed once, until the call is interrupted. Then the packets without a sample are
// counted.
func TestDropsAreFollowed(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var count atomic.Int32
	daemon := dropDaemon(t, func(r *http.Request) (telemetry.Drops, error) {
		d := dropped()
		d.Before, d.Tunnels = 0, nil
		calls := count.Add(1)
		if calls == 1 {
			d.Packets, d.Last = d.Packets[:1], 7
			return d, nil
		}
		if after := r.FormValue("after"); calls == 2 && after != "7" || calls == 3 && after != "9" {
			t.Errorf("call %d wants packets after %s", calls, after)
		}
		if d.Packets = d.Packets[1:]; calls == 3 {
			d.Packets = nil
			cancel()
		}
		return d, nil
	})

	var out bytes.Buffer
	if err := run(ctx, []string{"drops", "--follow", "--socket", daemon}, &out,
		io.Discard); err != nil {
		t.Error(err)
	}
	lines := strings.Split(out.String(), "\n")
	if len(lines) != 5 || strings.Index(lines[0], "BYTES") != strings.Index(lines[2], "0    ") ||
		!strings.Contains(lines[1], "policy_ingress") || !strings.Contains(lines[2], "ip_version") ||
		!strings.HasPrefix(lines[3], "Not shown: 40 packets") {
		t.Errorf("%s", &out)
	}
}
