package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/service/apiserver/prober"
)

// ownFiles is the number of files that a server or a process of probers may have open besides the
// probers' connections.
const ownFiles = 1000

// MoreFiles raises the limit of open files of a process to ownFiles and two connections per prober.
// If this process may not raise the hard limit, it raises the limit only to the hard limit. If even
// one connection per prober does not fit, it returns an error with the largest possible number of
// probers.
func MoreFiles(pid, probers int) error {
	least, most := uint64(probers+ownFiles), uint64(2*probers+ownFiles)
	var has unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &has); err != nil {
		return fmt.Errorf("read the limit of open files: %w", err)
	}
	want := unix.Rlimit{Cur: max(has.Cur, most), Max: max(has.Max, most)}
	err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &want, nil)
	if errors.Is(err, unix.EPERM) {
		if has.Max < least {
			return fmt.Errorf("a process may open %d files here: use --probers %d or less, or a "+
				"machine with a higher hard limit: %w", has.Max, int(has.Max)-ownFiles, err)
		}
		want = unix.Rlimit{Cur: has.Max, Max: has.Max}
		err = unix.Prlimit(pid, unix.RLIMIT_NOFILE, &want, nil)
	}
	if err != nil {
		return fmt.Errorf("raise the limit of open files: %w", err)
	}
	return nil
}

// ProberPause is the time between the starts of two probers, because nodes do not start at the same
// time.
const ProberPause = 5 * time.Millisecond

// Probe probes a server as the veilds of n nodes do, until ctx is done. It prints LineHeld once all
// probers had an answer. Failed in its tally counts how often a prober got no answer after that.
func Probe(ctx context.Context, addr string, n int, out io.Writer) error {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return err
	}
	if err := MoreFiles(os.Getpid(), n); err != nil {
		return err
	}

	var mu sync.Mutex
	var sum Tally
	held := 0
	var wg sync.WaitGroup
	for range n {
		first := true
		wg.Go(func() {
			report := func(o prober.Observation) {
				mu.Lock()
				defer mu.Unlock()
				switch {
				case o.Up && first:
					first = false
					if held++; held == n {
						fmt.Fprintln(out, LineHeld)
					}
				case !o.Up && held == n:
					sum.Failed++
				}
			}
			p := prober.Target{Addr: to, Report: report, Own: &prober.Cookies{},
				Pace: &prober.Pace{}}
			p.Pace.SetNodes(n)
			prober.Run(ctx, p)
		})
		select {
		case <-ctx.Done():
		case <-time.After(ProberPause):
		}
	}
	wg.Wait()
	return json.NewEncoder(out).Encode(sum)
}
