package link

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
	"github.com/kubeveil/kubeveil/pkg/service/link/hook"
)

// Flags of entries: FLOW_* of bpf/lib/service/flow.h.
const (
	flagRST  = 8
	flagSent = 16 // FLOW_CLIENT_SENT
	flagsFIN = 4 | 128
)

// entryOf returns a flow entry that was used this many seconds ago, with these flags and port.
func entryOf(t *testing.T, seconds, flags uint32, port byte) (f flowEntry) {
	t.Helper()
	var now unix.Timespec
	errtest.Must(t, unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &now))
	f[16] = port
	binary.NativeEndian.PutUint32(f[24:], flags)
	binary.NativeEndian.PutUint32(f[28:], uint32(now.Sec)-seconds)
	return f
}

// keyOf returns a key of TCP.
func keyOf(number int) (k flowKey) {
	binary.NativeEndian.PutUint32(k[:], uint32(number)+1)
	k[36] = unix.IPPROTO_TCP
	return k
}

// expectPort checks which entry a key of service_tcp has. Port 0 means none.
func (l *linked) expectPort(t *testing.T, when string, key, want int) {
	t.Helper()
	var f flowEntry
	if err := l.Map(bpfmaps.MapTCP).Lookup(keyOf(key), &f); err != nil && want > 0 {
		t.Errorf("%s: no entry %d: %v", when, key, err)
	} else if int(f[16]) != want {
		t.Errorf("%s: entry %d has port %d, want %d", when, key, f[16], want)
	}
}

// TestLaterEntryOfAReplacedProgramIsKept has an entry of a flow table in the former map and in the
// new one. The one that was used later stays, and in the same second the one that is not closing.
func TestLaterEntryOfAReplacedProgramIsKept(t *testing.T) {
	nettest.NeedBPF(t)
	l := newLinked(t, true)
	l.attach(t)
	old, err := l.Map(bpfmaps.MapTCP).Clone()
	errtest.Must(t, err)
	defer old.Close()
	const reused, moved, sameSecond, added = 1, 2, 3, 4
	errtest.Must(t, old.Put(keyOf(reused), entryOf(t, 30, flagSent|flagsFIN, 1)),
		old.Put(keyOf(moved), entryOf(t, 3, flagSent, 1)))
	errtest.Must(t, l.Close())

	l.reopen(t, 4096, false)
	l.expectPort(t, "after the first copy", reused, 1)
	now := entryOf(t, 0, flagSent, 2)
	closing := now
	closing[16], closing[24] = 1, flagSent|flagRST
	// The replaced programs write the former map, those of this table the new one.
	errtest.Must(t, old.Put(keyOf(reused), entryOf(t, 0, flagSent, 2)),
		old.Put(keyOf(moved), entryOf(t, 2, flagSent, 1)),
		l.Map(bpfmaps.MapTCP).Put(keyOf(moved), entryOf(t, 0, flagSent, 2)),
		old.Put(keyOf(sameSecond), now), l.Map(bpfmaps.MapTCP).Put(keyOf(sameSecond), closing),
		old.Put(keyOf(added), now))
	l.attach(t)
	for _, key := range []int{reused, moved, sameSecond, added} {
		l.expectPort(t, "when programs are replaced", key, 2)
	}
}

// TestFlowsThatAreOverAreNotCopied changes the sizes of a table with flows that are over.
func TestFlowsThatAreOverAreNotCopied(t *testing.T) {
	nettest.NeedBPF(t)
	l := newLinked(t, true)
	l.attach(t)
	for key, f := range []flowEntry{entryOf(t, 3600, flagSent, 1),
		entryOf(t, 60, flagSent|flagRST, 1), entryOf(t, 300, flagSent|flagsFIN, 1),
		entryOf(t, 300, flagSent|4, 1), entryOf(t, 300, 0, 1)} {
		errtest.Must(t, l.Map(bpfmaps.MapTCP).Put(keyOf(key), f))
	}
	// The forward entry lacks the FIN of the backend, which the reply entry has.
	const both = 5
	forward := keyOf(both)
	reply := flowKey{32: 1, 36: unix.IPPROTO_TCP, 37: 1}
	copy(reply[16:32], forward[:16])
	errtest.Must(t, l.Map(bpfmaps.MapTCP).Put(forward, entryOf(t, 300, 1|4|flagSent, 1)),
		l.Map(bpfmaps.MapTCP).Put(reply, entryOf(t, 300, flagSent|flagsFIN, 0)), l.Close())
	l.reopen(t, 4096, false)
	l.attach(t)
	// idle, reset, closed, half closed, never answered, closed by both ends
	for key, want := range []int{1, 0, 0, 1, 0, 0} {
		l.expectPort(t, "in a table of another size", key, want)
	}
}

// TestSmallerTableKeepsTheFlowsThatWereUsedLast copies more idle flows than the new table has room
// for.
func TestSmallerTableKeepsTheFlowsThatWereUsedLast(t *testing.T) {
	nettest.NeedBPF(t)
	l := newGuarded(t)
	c := l.config()
	c.Memory = memoryOf(1 << 15)
	l.openWith(t, c, true)
	l.setSelf(t)
	l.attach(t)

	const each, recent, idle, ended = 1000, 1, 2, 3
	keys, values := make([]flowKey, 0, 5*each), make([]flowEntry, 0, 5*each)
	for i := range 5 * each {
		f := entryOf(t, 10, flagSent, recent)
		if i >= each {
			f = entryOf(t, 1000+uint32(i/4), flagSent, idle)
		}
		if i >= 4*each {
			f = entryOf(t, 300, flagSent|flagRST, ended)
		}
		keys, values = append(keys, keyOf(i)), append(values, f)
	}
	_, err := l.Map(bpfmaps.MapTCP).BatchUpdate(keys, values, nil)
	errtest.Must(t, err, l.Close())

	c.Memory = memoryOf(1 << 12)
	l.openWith(t, c, true)
	t.Cleanup(func() { l.Table.Close() })
	l.setSelf(t)
	l.attach(t)
	kept := map[byte]int{}
	l.eachFlow(t, func(table string, _ flowKey, f flowEntry) {
		if table == bpfmaps.MapTCP {
			kept[f[16]]++
		}
	})
	// The table has room for 2048: 1000 recent ones, and some of the 3000 idle ones.
	if kept[recent] != each || kept[idle] < each/2 || kept[idle] > each || kept[ended] != 0 {
		t.Errorf("%d recent, %d idle and %d ended flows were kept", kept[recent], kept[idle],
			kept[ended])
	}
}

// TestQuotasBeginEmptyWithOtherNumbers changes the sizes of flow tables, from which the numbers of
// slots follow, but not the size of the map of slots.
func TestQuotasBeginEmptyWithOtherNumbers(t *testing.T) {
	nettest.NeedBPF(t)
	l := newLinked(t, true)
	l.attach(t)
	errtest.Must(t, l.Map(bpfmaps.MapQuotas).Put([20]byte{1}, [24]byte{2}))
	for _, c := range []struct{ udp, want int }{{256, 1}, {128, 0}, {256, 0}} {
		errtest.Must(t, l.Table.Close())
		config := l.config()
		config.Memory.UDP = uint32(c.udp)
		l.openWith(t, config, true)
		l.setSelf(t)
		l.attach(t)
		slots := 0
		errtest.Must(t, bpfmaps.Each(l.Table, bpfmaps.MapQuotas, func([20]byte, [24]byte) bool {
			slots++
			return true
		}))
		if slots != c.want {
			t.Errorf("with %d entries for UDP %d slots are held, want %d", c.udp, slots, c.want)
		}
	}
}

// TestLinkThatFailedIsTriedAgain has a filter of another program in the place of ours at a pod's
// link. The link waits once, however often it changes. Once it is served or gone, nothing uses the
// former maps.
func TestLinkThatFailedIsTriedAgain(t *testing.T) {
	nettest.NeedBPF(t)
	tc, ip := nettest.NeedProgram(t, "tc"), nettest.NeedProgram(t, "ip")
	filter := fmt.Sprintf("dev vmore0 egress pref %d protocol all", hook.FilterPriority)
	noFilter := append([]string{tc, "filter", "del"}, strings.Fields(filter)...)
	noLink := []string{ip, "link", "del", "vmore0"}
	for name, c := range map[string]struct {
		mend        []string
		beforeWatch bool
	}{
		"the filter is deleted":                    {mend: noFilter},
		"the link is deleted":                      {mend: noLink},
		"the link is deleted before it is watched": {noLink, true},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLinked(t, false)
			l.addPods(t, 1)
			l.host.Exec(t, tc, "qdisc", "add", "dev", "vmore0", "clsact")
			l.host.Exec(t, tc, append([]string{"filter", "add"},
				strings.Fields(filter+" u32 match u32 0 0")...)...)
			l.attach(t)
			errtest.Must(t, l.Table.Close())
			l.reopen(t, 4096, false)
			l.attach(t)
			if pins := l.formerPins(t); len(pins) != len(flowMaps) {
				t.Fatalf("while a link cannot be served, former maps are %v", pins)
			}

			late := newLateLinks(time.Hour)
			l.host.OnLink("vmore0", func(h *nl.Handle, failed nl.Link) error {
				for range 100 {
					l.linkChanged(h, failed, late)
				}
				return nil
			})
			if n := len(late.queue); n != 1 {
				t.Errorf("a link that changed 100 times waits %d times", n)
			}

			if c.beforeWatch {
				l.host.Exec(t, c.mend[0], c.mend[1:]...)
			}
			stop := l.watch(t, "u0", time.Millisecond)
			if !c.beforeWatch {
				l.host.Exec(t, c.mend[0], c.mend[1:]...)
			}
			nettest.Until(t, 10*time.Second, "the former maps are closed",
				func() bool { return len(l.formerPins(t)) == 0 })
			stop()
		})
	}
}

// stepLog is a handler that stops its caller at each message until the test goes on.
type stepLog struct {
	slog.Handler
	test  context.Context
	steps chan string
	goOn  chan struct{}
}

func (stepLog) Enabled(context.Context, slog.Level) bool { return true }

func (s stepLog) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool {
		text += " " + a.String()
		return true
	})
	select {
	case s.steps <- text:
	case <-s.test.Done():
		return nil
	}
	select {
	case <-s.goOn:
	case <-s.test.Done():
	}
	return nil
}

// TestFlowsGoOnWhileProgramsAreReplaced begins flows at the programs that AttachLinks is about to
// replace, after it has copied the flows of before. They go on as soon as the programs that get
// packets of clients outside are replaced.
func TestFlowsGoOnWhileProgramsAreReplaced(t *testing.T) {
	bothHooks(t, func(t *testing.T, withTCX bool) {
		l := newLinked(t, withTCX)
		l.addFar(t)
		l.serveHereAndFar(t)
		l.attach(t)
		errtest.Must(t, l.Table.Close())
		c := l.config()
		c.Memory = memoryOf(4096)
		s := stepLog{slog.DiscardHandler, t.Context(), make(chan string), make(chan struct{})}
		var flows []flow
		done := make(chan error, 1)
		go func() {
			defer close(s.steps)
			done <- l.host.Do(func() (err error) {
				c.Log = slog.New(s)
				if l.Table, err = bpfmaps.Open(c); err != nil {
					return err
				}
				l.Links = New(l.Table, Options{Log: c.Log})
				l.Links.tcx = withTCX
				_, err = l.AttachLinks()
				return err
			})
		}()

		copies, used := 0, 0
		for step := range s.steps {
			if strings.HasPrefix(step, "entries copied") && strings.Contains(step, "all=false") {
				if copies++; copies == len(flowMaps) {
					flows = l.talk(t)
				}
			}
			if strings.Contains(step, "vpod1") && len(flows) > 0 {
				used++
				expectGoOn(t, step, flows)
			}
			s.goOn <- struct{}{}
		}
		errtest.Must(t, <-done)
		if expectGoOn(t, "at the end", flows); used != 2 {
			t.Errorf("flows were used at %d steps, want 2", used)
		}
	})
}
