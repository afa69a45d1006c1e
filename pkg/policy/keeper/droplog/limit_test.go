package droplog

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/logtest"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables"
)

// dropTo is a drop of a packet to a port.
func dropTo(port int) nftables.Dropped {
	return nftables.Dropped{Reason: "policy_egress", Flow: policy.Flow{Proto: policy.TCP,
		Port: uint16(port), Src: netip.MustParseAddr("198.18.1.1"),
		Dst: netip.MustParseAddr("198.18.1.2")}}
}

func podNamed(name string) policy.Name { return policy.Name{Namespace: "shop", Name: name} }

// A pod cannot fill the node's log.
func TestLogOfDropsIsBounded(t *testing.T) {
	now := time.Unix(0, 0)
	l := newDropLimit()
	pod := podNamed("scanner")
	logged := func(ports ...int) (n int) {
		for _, p := range ports {
			if l.accept(dropTo(p), pod, now) {
				n++
			}
		}
		return n
	}
	var scan []int
	for p := range 60000 {
		scan = append(scan, p)
	}

	if n := logged(1, 1, 1); n != 1 || l.takeSkipped(pod) != 0 {
		t.Errorf("the same drop was logged %d times, want 1", n)
	}
	if n := logged(scan[2:]...); n != dropBurst-1 || l.takeSkipped(pod) != len(scan)-2-n {
		t.Errorf("a scan was logged %d times, want %d", n, dropBurst-1)
	}
	now = now.Add(dropEvery)
	if n := logged(scan[1000:]...); n != 1 {
		t.Errorf("after %s %d drops were logged, want 1", dropEvery, n)
	}
	now = now.Add(dropRepeat)
	if n := logged(1, 1); n != 1 {
		t.Errorf("after %s the same drop was logged %d times, want 1", dropRepeat, n)
	}
	for i := range 2 * dropKnown { // A patient sender fills the memory only up to its bound.
		now = now.Add(dropEvery)
		if known := len(l.senders[pod].known); logged(i) == 1 && known > dropKnown {
			t.Fatalf("%d drops are remembered, more than %d", known, dropKnown)
		}
	}
}

// One pod tries another port ten times a second; ten pods of another tenant are each denied one new
// connection a minute.
func TestNoisyPodHidesNoOtherFromTheLog(t *testing.T) {
	now := time.Unix(0, 0)
	l := newDropLimit()
	noisy, quiet := 0, 0
	for tick := range 36000 {
		now = now.Add(100 * time.Millisecond)
		if l.accept(dropTo(tick), podNamed("noisy"), now) {
			noisy++
		}
		if tick%60 != 30 {
			continue
		}
		pod := podNamed(fmt.Sprint("quiet-", tick/60%10))
		if !l.accept(dropTo(tick), pod, now) || l.takeSkipped(pod) != 0 {
			t.Fatalf("after %v the denial of another pod is not logged, or has skips of others",
				now.Sub(time.Unix(0, 0)))
		}
		quiet++
	}
	if want := dropBurst + 360; quiet != 600 || noisy > want {
		t.Errorf("in an hour %d lines of quiet pods and %d of the noisy one, want 600 and at most %d",
			quiet, noisy, want)
	}
	if n := l.takeSkipped(podNamed("noisy")); n != 36000-noisy {
		t.Errorf("skipped counts %d, want %d", n, 36000-noisy)
	}
}

// A line counts the skipped drops of its own pod.
func TestSkippedDropsAreCountedInTheLine(t *testing.T) {
	var j logtest.Buffer
	l := New(slog.New(slog.NewTextHandler(&j, nil)))
	add := func(port int, pod string) {
		l.Add(dropTo(port), Denier{Direction: "egress", Pod: "shop/" + pod}, podNamed(pod))
	}
	for port := range dropBurst + 7 {
		add(1000+port, "web")
	}
	l.limit.senders[podNamed("web")].bucket = bucket{} // Time passes.
	add(81, "quiet")
	add(80, "web")
	if got := j.Lines("skipped="); len(got) != 1 || strings.Contains(got[0], "policies") ||
		!strings.Contains(got[0], "proto=tcp port=80 direction=egress pod=shop/web skipped=7") {
		t.Errorf("lines %q", got)
	}
}

// Many senders cannot fill the memory or the log of a node.
func TestSendersOfDropsAreBounded(t *testing.T) {
	now := time.Unix(0, 0)
	l := newDropLimit()
	logged := 0
	for i := range 4 * dropSenders {
		if l.accept(dropTo(i), podNamed(fmt.Sprint(i)), now) {
			logged++
		}
	}
	if len(l.senders) > dropSenders+1 || logged != dropNodeBurst {
		t.Errorf("%d senders are remembered and %d drops logged, want at most %d and %d",
			len(l.senders), logged, dropSenders+1, dropNodeBurst)
	}
	now = now.Add(2 * dropRepeat)
	if !l.accept(dropTo(1), podNamed("new"), now) || l.senders[podNamed("new")] == nil {
		t.Error("a new sender finds no room beside idle ones")
	}
}

// A namespace with many policies does not take the room of other namespaces.
func TestDeniedRulesAreBounded(t *testing.T) {
	var d counts
	for i := range MaxRulesOf + 7 {
		d.add(Denier{Direction: "ingress", Policies: []string{fmt.Sprint("evil/", i)}})
	}
	d.add(Denier{Direction: "ingress", Policies: []string{"shop/web", "out"}})
	counts, leftOut := d.retain(map[string]bool{"shop/web": true, "out": true})
	if len(counts) != 2 || leftOut != 7 || len(d.byRule) != 2 || d.rules["evil"] != 0 {
		t.Errorf("%v, %d left out, %v", counts, leftOut, d.rules)
	}
}
