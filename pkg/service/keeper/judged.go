package keeper

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/kubeveil/kubeveil/internal/atomicfile"
	"github.com/kubeveil/kubeveil/internal/poll"
	"github.com/kubeveil/kubeveil/pkg/firewall"
)

// fastPathOffFile is the name of the file that keeps the fast path off until the node restarts.
const fastPathOffFile = "fast-path-off"

// judged decides for services.hostRouting auto whether pods may have the fast path: until a chain
// of another program judges their packets. Once it has seen one, the fast path stays off until the
// node restarts, even if the chain disappears: a policy agent may install its chain with its first
// policy, and remove it with its last one.
//
// The methods of a nil judged do nothing.
type judged struct {
	file string
	log  *slog.Logger
	poke chan struct{}
	// rest is the pause after a failed look, or a failed end of the fast path. every is the
	// interval of looks without a notification: iptables-legacy sends none.
	rest, every time.Duration
	// by is the reason why the fast path is off. Nil means that it is on.
	by atomic.Pointer[string]
}

// newJudged looks for a chain in the network namespace of the calling thread, and returns a judged
// that keeps its decision in a file on tmpfs.
func newJudged(file string, log *slog.Logger) *judged {
	j := &judged{file: file, log: log, poke: make(chan struct{}, 1), rest: time.Second,
		every: time.Minute}
	if text, err := os.ReadFile(file); err == nil {
		by := string(text)
		j.by.Store(&by)
	} else if err := j.look(); err != nil {
		by := err.Error() // follow does not look again: what is not known may judge packets
		j.by.Store(&by)
		log.Warn("packets of pods do not bypass netfilter", "reason", by)
	}
	return j
}

// look sets by if a chain of another program judges packets.
func (j *judged) look() error {
	found, is, err := firewall.FindJudge("/proc")
	if err != nil || !is {
		return err
	}
	by := fmt.Sprintf("%s judges packets of pods (seen at %s)", found,
		time.Now().UTC().Format(time.RFC3339))
	if err := atomicfile.Write(j.file, []byte(by), 0o600); err != nil {
		j.log.Warn("after a restart of veild, pods may bypass netfilter again", "error", err)
	}
	j.by.Store(&by)
	return nil
}

// reason returns why the fast path is off, or "".
func (j *judged) reason() string {
	if j == nil {
		return ""
	}
	if by := j.by.Load(); by != nil {
		return *by
	}
	return ""
}

// changed makes follow look again.
func (j *judged) changed() {
	if j == nil {
		return
	}
	select {
	case j.poke <- struct{}{}:
	default:
	}
}

// follow looks for chains until it finds one, and then calls stop until it succeeds. It returns
// when ctx ends, or when it has nothing more to do.
func (j *judged) follow(ctx context.Context, stop func() error) {
	if j == nil || j.reason() != "" {
		return
	}
	tick := time.NewTicker(j.every)
	defer tick.Stop()
	for j.reason() == "" {
		select {
		case <-j.poke:
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if err := j.look(); err != nil {
			j.log.Warn("look for chains of other programs", "error", err)
			if poll.Pause(ctx, j.rest) != nil {
				return
			}
			j.changed()
		}
	}

	j.log.Warn("packets of pods no longer bypass netfilter", "reason", j.reason())
	for err := stop(); err != nil; err = stop() {
		j.log.Warn("take the fast path from pods", "error", err)
		if poll.Pause(ctx, j.rest) != nil {
			return
		}
	}
}
