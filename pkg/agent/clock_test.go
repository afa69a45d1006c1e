package agent

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/agent/plan"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/kube"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// A clock that is set back by more than a peer is without the node anyway costs a new key, at most
// one a minute.
func TestClockThatIsSetBackCostsAKey(t *testing.T) {
	wall, boot := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), time.Hour
	file := filepath.Join("/dev/shm", "kubeveil-clock-test", "key")
	t.Cleanup(func() { errtest.Must(t, os.RemoveAll(filepath.Dir(file))) })
	key, _, err := wgkey.LoadOrCreate(file, false)
	errtest.Must(t, err)
	l := &loop{Agent: &Agent{log: slog.New(slog.DiscardHandler), kube: &kube.Client{}}, key: key,
		clock: clock{now: func() (time.Time, time.Duration) { return wall, boot }}}
	check := func(what string, byClock, since time.Duration, another, named bool) {
		t.Helper()
		wall, boot = wall.Add(byClock), boot+since
		before := l.key
		in := plan.Inputs{Config: config.Config{KeyFile: file}, Key: l.key}
		if note := l.checkClock(&in); named != strings.Contains(note, "replaces it again") {
			t.Errorf("%s: note %q", what, note)
		}
		if another == (l.key.Public() == before.Public()) || in.Key.Public() != l.key.Public() {
			t.Errorf("%s: another key %t, want %t", what, !another, another)
		}
		stored, _, err := wgkey.LoadOrCreate(file, false)
		if err != nil || stored.Public() != l.key.Public() {
			t.Errorf("%s: the file has another key: %v", what, err)
		}
	}

	check("it goes on", 10*time.Second, 10*time.Second, false, false)
	check("it is set ahead", time.Hour, time.Second, false, false)
	check("it is set back a little", -5*time.Second, time.Second, false, false)
	check("it is set right", -time.Hour, time.Second, true, false)
	check("it is set back again at once", -time.Hour, time.Second, false, true)
	check("the pause is over", 0, time.Minute, true, false)
	check("nothing since", time.Second, time.Hour, false, false)
}

// If the key from before a restart was made at a time that is now in the future, setBack returns by
// how much, and the key is replaced.
func TestKeyOfTheFutureIsReplaced(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := clock{now: func() (time.Time, time.Duration) { return now, time.Hour },
		latest: now.Add(time.Hour)}
	if got := c.setBack(); got != time.Hour {
		t.Errorf("set back by %v, want an hour", got)
	}
}

// A key that peers get from another source, or that is on a disk, is not replaced. A note names the
// remedy.
func TestKeyThatCannotBeReplacedIsNamed(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	l := &loop{Agent: &Agent{log: slog.New(slog.DiscardHandler)},
		clock: clock{latest: now.Add(time.Hour),
			now: func() (time.Time, time.Duration) { return now, time.Hour }}}
	note := l.checkClock(&plan.Inputs{})
	if !strings.Contains(note, "for 1h0m0s: replace the node's private key") {
		t.Errorf("note %q", note)
	}
	if d := plan.Decide(plan.Inputs{ClockNote: note}); len(d.Notes) != 1 || d.Notes[0] != note {
		t.Errorf("notes %q", d.Notes)
	}
}
