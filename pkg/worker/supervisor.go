package worker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Supervisor runs a process for each request in Dir.
type Supervisor struct {
	// Dir holds requests, locks and states.
	Dir string
	// Command returns the program and arguments of a device's process. The held
	// lock of the device is its file descriptor 3.
	Command func(Request) []string
	// TrustDisk allows Dir to be elsewhere than on tmpfs.
	TrustDisk bool
	Log       *slog.Logger

	keepers map[string]*keeper
	refused map[string]string // by file name: what was last said against it
	done    chan string
	// patience is handover; tests shorten it.
	patience time.Duration
}

// rescan is the time after which Dir is read again when nothing was heard of it:
// it may have been removed and made again.
const rescan = time.Second

// handover is how long a supervisor waits for a previous one to end, which gives its processes
// their grace period.
const handover = 2 * grace

// Run serves the requests until ctx ends. Then it ends the processes; the
// devices, their routes and their states stay. It refuses to run beside
// another supervisor of the same directory, after it has waited a little for its end.
func (s *Supervisor) Run(ctx context.Context) error {
	if err := prepareDir(s.Dir, s.TrustDisk); err != nil {
		return err
	}

	own, err := s.takeOver(ctx)
	if err != nil || own == nil {
		return err
	}
	defer own.Close()
	s.keepers, s.refused, s.done = map[string]*keeper{}, map[string]string{}, make(chan string)
	changed, stop, err := watch(s.Dir)
	if err != nil {
		return err
	}
	defer stop()

	tick := time.NewTicker(rescan)
	defer tick.Stop()
	s.Log.Info("serving device requests", "dir", s.Dir)

	for {
		s.scan(ctx)
		select {
		case <-ctx.Done():
			s.drain()
			return nil
		case name := <-s.done:
			delete(s.keepers, name)
		case <-changed:
		case <-tick.C:
		}
	}
}

// takeOver takes the supervisor's lock; nil when ctx ended before.
func (s *Supervisor) takeOver(ctx context.Context) (*os.File, error) {
	patience := s.patience
	if patience == 0 {
		patience = handover
	}
	waited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for told := false; ; {
		own, held, err := tryLock(filepath.Join(s.Dir, "supervisor.lock"))
		if err != nil || held {
			return own, err
		}
		if !told {
			s.Log.Info("another veil-wg serves the directory, waiting for its end", "dir", s.Dir,
				"at_most", patience)
			told = true
		}
		select {
		case <-waited.Done():
			if ctx.Err() != nil {
				return nil, nil
			}
			return nil, fmt.Errorf("another veil-wg serves %s", s.Dir)
		case <-time.After(adoptedPoll):
		}
	}
}

// drain waits for the keepers, which see the same end of the context.
func (s *Supervisor) drain() {
	for len(s.keepers) > 0 {
		delete(s.keepers, <-s.done)
	}
}

// scan starts a keeper for each new request and ends those whose request is gone.
func (s *Supervisor) scan(ctx context.Context) {
	wanted, err := s.requests()
	if err != nil {
		s.Log.Warn("read device requests", "err", err)
		return
	}
	for name, k := range s.keepers {
		if _, ok := wanted[name]; !ok && !k.removing {
			s.Log.Info("request is gone, removing device", "device", name)
			k.removing = true
			k.remove()
		}
	}
	for name, r := range wanted {
		if k, ok := s.keepers[name]; ok {
			k.request.Store(&r)
			continue
		}
		s.keepers[name] = s.keep(ctx, r)
	}
}

// requests reads Dir. A request that cannot be read counts as absent and is
// complained of once.
func (s *Supervisor) requests() (map[string]Request, error) {
	entries, err := os.ReadDir(s.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, prepareDir(s.Dir, s.TrustDisk)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", s.Dir, err)
	}
	wanted := map[string]Request{}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), requestSuffix)
		if !ok {
			continue
		}
		r, err := s.request(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			s.refuse(e.Name(), err)
		default:
			delete(s.refused, e.Name())
			wanted[name] = r
		}
	}
	return wanted, nil
}

func (s *Supervisor) request(name string) (Request, error) {
	data, err := os.ReadFile(filepath.Join(s.Dir, name+requestSuffix))
	if err != nil {
		return Request{}, err
	}
	r, err := ParseRequest(data)
	if err == nil && r.Device != name {
		err = fmt.Errorf("it names device %q: a request is called <device>%s", r.Device,
			requestSuffix)
	}
	if k, ok := s.keepers[name]; err != nil && ok {
		// A bad edit of a good request takes no device away.
		s.refuse(name+requestSuffix, err)
		return *k.request.Load(), nil
	}
	return r, err
}

func (s *Supervisor) refuse(file string, err error) {
	if s.refused[file] != err.Error() {
		s.refused[file] = err.Error()
		s.Log.Warn("device request refused", "file", file, "err", err)
	}
}

// watch signals changes in dir on a channel that holds at most one signal.
func watch(dir string) (<-chan struct{}, func(), error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, nil, fmt.Errorf("watch %s: %w", dir, err)
	}
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CLOSE_WRITE|unix.IN_MOVED_TO|
		unix.IN_MOVED_FROM|unix.IN_DELETE); err != nil {
		unix.Close(fd)
		return nil, nil, fmt.Errorf("watch %s: %w", dir, err)
	}
	f := os.NewFile(uintptr(fd), "inotify")
	changed := make(chan struct{}, 1)
	go func() {
		buf := make([]byte, 4096)
		for {
			if _, err := f.Read(buf); err != nil {
				return
			}
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	}()
	return changed, func() { f.Close() }, nil
}
