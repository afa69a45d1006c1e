package link

import (
	"bytes"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
)

// fillUDP writes many entries to the flow table of UDP, which were used a moment ago.
func (l *linked) fillUDP(t *testing.T, many int) {
	t.Helper()
	keys, values := make([]flowKey, many), make([]flowEntry, many)
	for i := range keys {
		copy(keys[i][:], fmt.Sprintf("%040d", i))
		values[i] = entryOf(t, 0, 0, 0)
	}
	_, err := l.Map(bpfmaps.MapUDP).BatchUpdate(keys, values, nil)
	errtest.Must(t, err)
}

// addPods adds links of pods without namespaces of their own.
func (l *linked) addPods(t *testing.T, many int) {
	t.Helper()
	for i := range many {
		attrs := nl.NewLinkAttrs()
		attrs.Name, attrs.Group = fmt.Sprintf("vmore%d", i), abi.PodGroup
		errtest.Must(t, l.host.Handle().LinkAdd(&nl.Veth{LinkAttrs: attrs,
			PeerName: attrs.Name + "p"}))
	}
}

// formerPins returns the pins of former maps.
func (l *linked) formerPins(t *testing.T) []string {
	t.Helper()
	pins, err := filepath.Glob(l.dir + "/service_former_*")
	errtest.Must(t, err)
	return pins
}

// TestChangedSizesCopyEachMapOnce changes the sizes of the flow tables of a node with pods. The
// number of copies does not depend on the number of its links. One full copy is made when the table
// opens. What is newer is copied before programs are replaced, after those outside, and at the end.
func TestChangedSizesCopyEachMapOnce(t *testing.T) {
	bothHooks(t, func(t *testing.T, withTCX bool) {
		l := newGuarded(t)
		c := l.config()
		c.Memory = memoryOf(1 << 17)
		l.openWith(t, c, withTCX)
		l.setSelf(t)
		l.addPods(t, 20)
		places := len(l.attach(t))
		l.fillUDP(t, 20_000)
		errtest.Must(t, l.Close())

		var log bytes.Buffer
		c.Memory = memoryOf(1 << 16)
		c.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		l.openWith(t, c, withTCX)
		l.setSelf(t)
		began := time.Now()
		if changed := l.attach(t); len(changed) != places {
			t.Errorf("AttachLinks changed %v", changed)
		}

		t.Logf("%d programs were replaced in %v", places, time.Since(began))
		t.Cleanup(func() { l.Table.Close() })
		for _, name := range flowMaps {
			copied := "map=" + name + " entries="
			full, newer := 0, 0
			for line := range strings.Lines(log.String()) {
				if strings.Contains(line, copied) && strings.Contains(line, "all=true") {
					full++
				} else if strings.Contains(line, copied) {
					newer++
				}
			}
			if full != 1 || newer != 3 {
				t.Errorf("%s was copied %d times, and %d times what is newer, want 1 and 3", name,
					full, newer)
			}
		}
		if pins := l.formerPins(t); len(pins) > 0 {
			t.Errorf("former maps are still pinned: %v", pins)
		}
	})
}

// TestEntriesOfFormerMapsOutliveAKill kills the process after it replaced all programs and before
// it copied what these wrote last.
func TestEntriesOfFormerMapsOutliveAKill(t *testing.T) {
	nettest.NeedBPF(t)
	l := newLinked(t, true)
	places := len(l.attach(t))
	old, err := l.Map(bpfmaps.MapUDP).Clone()
	errtest.Must(t, err)
	errtest.Must(t, l.Close())

	l.reopen(t, 4096, false)
	l.host.Run(t, func() error { return l.replaceSome(places) })
	last := flowKey{1}
	errtest.Must(t, old.Put(last, entryOf(t, 0, 0, 0)))
	errtest.Must(t, old.Close())
	errtest.Must(t, l.Close())

	l.reopen(t, 4096, false)
	if changed := l.attach(t); len(changed) > 0 {
		t.Errorf("AttachLinks changed %v", changed)
	}
	var entry flowEntry
	if err := l.Map(bpfmaps.MapUDP).Lookup(last, &entry); err != nil {
		t.Errorf("the last entry of the former map is lost: %v", err)
	}
	if pins := l.formerPins(t); len(pins) > 0 {
		t.Errorf("former maps are still pinned: %v", pins)
	}
}

// TestFormerMapsAreBounded changes the sizes again and again, while AttachLinks never succeeds.
func TestFormerMapsAreBounded(t *testing.T) {
	nettest.NeedBPF(t)
	l := newLinked(t, true)
	l.attach(t)
	l.fillUDP(t, 100)
	for i := range 8 {
		errtest.Must(t, l.Close())
		l.reopen(t, 4096+1024*uint32(i), false)
	}

	const kinds, max = 3, 4 // TCP, opening connections, UDP
	if pins := l.formerPins(t); len(pins) != kinds*max {
		t.Errorf("%d former maps are pinned, want %d", len(pins), kinds*max)
	}
	l.attach(t)
	if pins := l.formerPins(t); len(pins) > 0 {
		t.Errorf("former maps are still pinned: %v", pins)
	}
	entries := 0

	l.eachFlow(t, func(string, flowKey, flowEntry) { entries++ })
	if entries != 100 {
		t.Errorf("%d entries are left, want 100", entries)
	}
}
