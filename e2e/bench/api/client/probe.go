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

// ownFiles is how many files a server or a process of probers has open beside the connections of
// probers.
const ownFiles = 1000

// MoreFiles raises the limit of open files of a process to two connections per prober and ownFiles,
// or as far as it may be raised. One connection each must fit. The error says how many probers are
// possible.
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

// ProberPause is the time between the begins of two probers: nodes do not start in one moment.
const ProberPause = 5 * time.Millisecond

// Probe probes a server as the veilds of n nodes do, until ctx is done. It prints a line once all
// have had an answer. Its tally counts how often a prober found the server silent after that.
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
			prober.Probe(ctx, to, n, func(up bool) {
				mu.Lock()
				defer mu.Unlock()
				switch {
				case up && first:
					first = false
					if held++; held == n {
						fmt.Fprintln(out, LineHeld)
					}
				case !up && held == n:
					sum.Failed++
				}
			})
		})
		select {
		case <-ctx.Done():
		case <-time.After(ProberPause):
		}
	}
	wg.Wait()
	return json.NewEncoder(out).Encode(sum)
}
