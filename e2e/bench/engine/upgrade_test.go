package engine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/engine/aead"
	"github.com/kubeveil/kubeveil/pkg/worker"
)

// newWorld builds a world with Kubeveil's engine on both nodes.
func newWorld(t *testing.T, shards int, step [2]string) *world {
	t.Helper()
	nettest.NeedTUN(t)
	nettest.NeedProgram(t, "ip")
	dir, err := os.MkdirTemp("/dev/shm", "kvtest")
	errtest.Must(t, err)
	own := worker.EngineKubeveil
	w := &world{side: side{name: "test", engine: own}, engines: [2]string{own, own},
		shards: shards, mtu: 1500, dir: dir, step: step}
	t.Cleanup(func() {
		if t.Failed() {
			for k := range 2 {
				b, _ := os.ReadFile(filepath.Join(w.dir, fmt.Sprint(k), "log"))
				t.Logf("log of node %d:\n%s", k, b)
			}
		}
		w.close()
		os.RemoveAll(dir)
	})
	errtest.Must(t, w.build(t.Context()))
	return w
}

// flowing waits until datagrams arrive.
func flowing(t *testing.T, s *steady) {
	t.Helper()
	from := time.Now()
	nettest.Until(t, 30*time.Second, "datagrams that come", func() bool {
		return s.longest(from) > 0
	})
}

// Upgrades of nodes under a stream and a thousand datagrams per second each way lose no datagram
// and need no handshake.
func TestUpgradeLosesNothing(t *testing.T) {
	for shards, upgrades := range map[int]int{1: 20, 4: 6} {
		t.Run(fmt.Sprintf("%d shards", shards), func(t *testing.T) {
			w := newWorld(t, shards, [2]string{})
			there := begin(t, w, podA, podB, 100e6)
			back := begin(t, w, podB, podA, 0)

			var before [2]string
			for i := range before {
				var err error
				if before[i], err = w.handshake(i); err != nil {
					t.Fatal(err)
				}
			}

			var pauses []time.Duration
			for n := range upgrades {
				from := time.Now()
				errtest.Must(t, w.upgrade(n%2, ""))
				flowing(t, there)
				flowing(t, back)
				pauses = append(pauses, there.longest(from), back.longest(from))
			}

			for i := range before {
				if after, err := w.handshake(i); err != nil || after != before[i] {
					t.Errorf("node %d: last handshake %q, %v, before %q", i, after, err, before[i])
				}
			}

			sent := there.count() + back.count()
			if a, b := there.lost(), back.lost(); a+b > 0 {
				t.Errorf("%d and %d datagrams of %d were lost", a, b, sent)
			}
			slices.Sort(pauses)
			t.Logf("longest time of a datagram: median %s, at most %s", pauses[len(pauses)/2],
				pauses[len(pauses)-1])
		})
	}
}

// Part upgrades measures all cases for which gates.json has limits.
func TestUpgradesAreMeasured(t *testing.T) {
	nettest.NeedLong(t, "it only tries a measurement")
	nettest.NeedTUN(t)
	nettest.NeedProgram(t, "ip")
	dir, err := os.MkdirTemp("/dev/shm", "kvtest")
	errtest.Must(t, err)
	defer os.RemoveAll(dir)
	cases, tables, err := aRun(t, dir).measureUpgrades(t.Context(), 1500)
	errtest.Must(t, err)

	result := &bench.Result{Platform: bench.Namespaces, AEAD: aead.XCrypto.Name, Cases: cases}
	gates, err := bench.Judge(result, Suite)
	errtest.Must(t, err)
	judged := 0
	for _, g := range gates {
		if strings.HasPrefix(g.Name, "upgrade_") && strings.HasSuffix(g.Name, "MTU 1500") {
			judged++
		}
	}
	if judged != 4 {
		t.Errorf("%d gates of upgrades are judged, want 4: %+v", judged, gates)
	}
	for _, name := range []string{"upgrade_lost", "upgrade_handshakes"} {
		if c := result.Find(name, 1500); c == nil || c.Ours.Max != 0 {
			t.Errorf("%s: %+v, want 0", name, c)
		}
	}
	for name, n := range map[string]int{"upgrade_pause": 2, "upgrade_stood_still": 2,
		"upgrade_stream": 2} {
		if c := result.Find(name, 1500); c == nil || c.Ours.N != n || c.Ours.Min <= 0 {
			t.Errorf("%s: %+v, want %d positive values", name, c, n)
		}
	}
	if len(tables) != 1 || len(tables[0].Rows) == 0 {
		t.Errorf("tables are %+v, want one of the steps", tables)
	}
}

// A datagram belongs to the window in which it was sent. A datagram that has not arrived is
// missing.
func TestWindowOfDatagrams(t *testing.T) {
	ms := time.Millisecond
	s := &steady{began: time.Now(), sent: []time.Duration{1 * ms, 2 * ms, 3 * ms, 4 * ms},
		came: []time.Duration{9 * ms, 5 * ms, 0, 7 * ms}}
	for _, tc := range []struct {
		from, to, longest time.Duration
		missing           int
	}{
		{0, 10 * ms, 9 * ms, 1},
		{2 * ms, 4 * ms, 5 * ms, 1},
		{4 * ms, 9 * ms, 7 * ms, 0},
		{5 * ms, 9 * ms, 0, 0},
		{3 * ms, 2 * ms, 0, 0},
	} {
		longest, missing := s.window(s.began.Add(tc.from), s.began.Add(tc.to))
		if longest != tc.longest || missing != tc.missing {
			t.Errorf("from %s to %s: %s and %d missing, want %s and %d", tc.from, tc.to, longest,
				missing, tc.longest, tc.missing)
		}
	}
}

// begin starts the counted load only after a session exists, so datagrams that wait for the first
// session do not count.
func begin(t *testing.T, w *world, from, to, bits int) *steady {
	t.Helper()
	first, err := w.steadyLoad(t.Context(), from, to, 0)
	errtest.Must(t, err)
	flowing(t, first)
	first.lost()
	s, err := w.steadyLoad(t.Context(), from, to, bits)
	errtest.Must(t, err)
	flowing(t, s)
	return s
}

// Either process may be killed at any step of a handover. Before the commit, the other process
// continues to serve without a handshake. After it, a new process starts with a handshake.
func TestDeathAtAnyStepOfAnUpgrade(t *testing.T) {
	for _, tc := range []struct {
		step string
		old  bool // the old process is killed, not its successor
		kept bool // the sessions survive
	}{
		{worker.StepPrepared, false, true},
		{worker.StepFilled, false, true},
		{worker.StepReceived, false, true},
		{worker.StepImported, false, true},
		{worker.StepTold, false, false}, // the old process may have received "go" or not
		{worker.StepGo, false, false},
		{worker.StepStarted, false, false},
		{worker.StepHello, true, false},
		{worker.StepBase, true, false},
		{worker.StepExported, true, false},
		{worker.StepSent, true, false},
		{worker.StepTaken, true, false},
		{worker.StepGone, true, true},
	} {
		t.Run(tc.step, func(t *testing.T) {
			step := [2]string{}
			successor := tc.step
			if tc.old {
				step[0], successor = tc.step, ""
			}
			w := newWorld(t, 0, step)
			s := begin(t, w, podA, podB, 0)
			defer s.lost()
			before, err := w.handshake(0)
			errtest.Must(t, err)

			old := w.procs[0]
			err = w.upgrade(0, successor)
			if tc.old && tc.kept {
				// The old process died after it sent "go", so the successor serves.
				if errors.Is(err, errNotTaken) {
					t.Fatal(err)
				}
			} else if !errors.Is(err, errNotTaken) {
				t.Fatalf("upgrade: %v, want an error", err)
			}

			if !tc.kept {
				// Do what the supervisor does when no process holds the lock.
				if w.procs[0] == old {
					if tc.old || tc.step == worker.StepGo || tc.step == worker.StepStarted {
						_ = old.Wait()
					} else if after, err := w.handshake(0); err == nil && after == before {
						return // the process was killed before the commit
					} else {
						_ = old.Wait()
					}
				}
				w.step[0] = ""
				errtest.Must(t, w.start(0, w.mtu-overhead))
			}

			flowing(t, s)
			var after string
			nettest.Until(t, 5*time.Second, "the last handshake", func() bool {
				var err error
				after, err = w.handshake(0)
				return err == nil
			})
			if (after == before) != tc.kept {
				t.Errorf("last handshake %q, before %q; want the sessions kept: %v", after, before,
					tc.kept)
			}
		})
	}
}
