package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/atomicfile"
)

// Supervisor runs a process for each request in Dir.
type Supervisor struct {
	// Dir holds requests, locks and states.
	Dir string
	// Command returns the program and arguments of a device's process. The process inherits the
	// held lock of the device as file descriptor 3.
	Command func(Request) []string
	// Takeover returns the program and arguments of a process that takes a device over from the
	// process that serves it. Once that is done, it writes a byte to its file descriptor 3. If
	// Takeover is nil or returns nothing, the supervisor waits until the old process ends.
	Takeover func(Request) []string
	// Instance names this process and later processes in the same place, for example by the UID of
	// the pod. A newer instance serves the directory and an older one waits. If Instance is empty,
	// each start is a new instance.
	Instance string
	// TrustDisk allows a Dir that is not on tmpfs.
	TrustDisk bool
	Log       *slog.Logger

	keepers map[string]*keeper
	refused map[string]string // by file name: the last logged reason
	done    chan string
	left    []*process // started processes whose devices a newer supervisor serves
	// patience is endPatience; tests shorten it.
	patience time.Duration
}

// rescan is the interval at which Dir is read without a signal, because a removed and recreated Dir
// is not watched.
const rescan = time.Second

// endPatience is the time that a supervisor waits for an earlier one to end. It is longer than
// grace, because the earlier one waits that long for its processes.
const endPatience = 2 * grace

// Run serves the requests until ctx ends. Then it ends the processes, but keeps the devices, their
// routes and their states. When a newer supervisor of the same directory starts, Run stops serving.
// It serves again when the newer one has ended. If an older supervisor does not stop serving within
// endPatience, Run returns an error, or continues to wait if Instance is set.
func (s *Supervisor) Run(ctx context.Context) error {
	if err := prepareDir(s.Dir, s.TrustDisk); err != nil {
		return err
	}

	me, err := register(s.Dir, s.Instance)
	if err != nil {
		return err
	}
	defer me.close()
	defer s.endLeft()
	for {
		own, err := s.takeOver(ctx, me)
		if err != nil || own == nil {
			return err
		}
		yielded, err := s.serve(ctx, me)
		own.Close()
		if err != nil || !yielded {
			return err
		}
		s.Log.Info("a newer veil-wg takes the devices over; waiting until it ends", "dir", s.Dir)
	}
}

// serve serves the requests until ctx ends or a newer supervisor runs. yielded reports the latter.
func (s *Supervisor) serve(ctx context.Context, me *instance) (yielded bool, err error) {
	s.keepers, s.refused, s.done = map[string]*keeper{}, map[string]string{}, make(chan string)
	changed, stop, err := watch(s.Dir)
	if err != nil {
		return false, err
	}
	defer stop()

	tick := time.NewTicker(rescan)
	defer tick.Stop()
	s.Log.Info("serving device requests", "dir", s.Dir)

	for {
		if me.superseded() {
			s.setReady(me, false)
			s.leave()
			return true, nil
		}
		s.scan(ctx)
		s.setReady(me, s.settled())
		select {
		case <-ctx.Done():
			s.drain()
			return false, nil
		case name := <-s.done:
			delete(s.keepers, name)
		case <-changed:
		case <-tick.C:
		}
	}
}

func (s *Supervisor) setReady(me *instance, ready bool) {
	if err := me.setReady(ready); err != nil {
		s.Log.Warn("readiness is not reported", "err", err)
	}
}

// settled reports whether each device has a process of this supervisor, or a process that cannot or
// does not hand the device over.
func (s *Supervisor) settled() bool {
	for _, k := range s.keepers {
		if !k.settled.Load() {
			return false
		}
	}
	return true
}

// leave ends the keepers without ending the processes of the devices.
func (s *Supervisor) leave() {
	for _, k := range s.keepers {
		k.leaving.Store(true)
		k.stop()
	}
	for len(s.keepers) > 0 {
		name := <-s.done
		if p := s.keepers[name].process; p != nil {
			s.left = append(s.left, p)
		}
		delete(s.keepers, name)
	}
	s.left = slices.DeleteFunc(s.left, (*process).ended)
}

// endLeft ends the processes of this supervisor that still serve a device.
func (s *Supervisor) endLeft() {
	var all sync.WaitGroup
	for _, p := range s.left {
		all.Go(func() { _ = p.end() })
	}
	all.Wait()
}

// supersededPoll is the interval of checks whether the newer supervisor still runs.
const supersededPoll = 200 * time.Millisecond

// takeOver waits for the lock of the directory's supervisor, and returns it. It returns nil if ctx
// ends first.
func (s *Supervisor) takeOver(ctx context.Context, me *instance) (*os.File, error) {
	patience := s.patience
	if patience == 0 {
		patience = endPatience
	}
	waiting, told := time.Now(), false
	for {
		var pause time.Duration
		if me.superseded() {
			waiting, pause = time.Now(), supersededPoll
		} else {
			own, held, err := tryLock(filepath.Join(s.Dir, "supervisor.lock"))
			if err != nil || held {
				return own, err
			}
			pause = adoptedPoll
		}

		if !told {
			s.Log.Info("another veil-wg serves the directory, waiting for its end", "dir", s.Dir,
				"at_most", patience)
			told = true
		}

		select {
		case <-ctx.Done():
			return nil, nil
		case <-time.After(pause):
		}

		if time.Since(waiting) < patience || me.superseded() {
			continue
		}
		if s.Instance == "" {
			return nil, fmt.Errorf("another veil-wg serves %s", s.Dir)
		}
		// The older veil-wg cannot hand its devices over. Report ready, so that the rollout
		// continues and ends it.
		s.setReady(me, true)
	}
}

// drain waits until all keepers have ended. The caller has ended their context.
func (s *Supervisor) drain() {
	for len(s.keepers) > 0 {
		delete(s.keepers, <-s.done)
	}
}

// scan starts a keeper for each new request, and removes the devices whose request is gone.
func (s *Supervisor) scan(ctx context.Context) {
	wanted, err := s.requests()
	if err != nil {
		s.Log.Warn("read device requests", "err", err)
		return
	}
	for name, k := range s.keepers {
		if _, ok := wanted[name]; !ok && !k.removing {
			s.Log.Info("the request was removed; removing its device", "device", name)
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

// requests returns the requests in Dir by device name. It leaves out a request that cannot be read,
// and logs that once.
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
	f, err := os.Open(filepath.Join(s.Dir, name+requestSuffix))
	if err != nil {
		return Request{}, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxRequest+1))
	f.Close()
	if err != nil {
		return Request{}, err
	}
	r, err := ParseRequest(data)
	if err == nil && r.Device != name {
		err = fmt.Errorf("it names device %q: a request is called <device>%s", r.Device,
			requestSuffix)
	}
	if k, ok := s.keepers[name]; err != nil && ok {
		// If a good request is replaced by a bad one, keep the device with the good one.
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

// watch returns a channel that signals changes of files in dir, and a function that ends the watch.
// The channel holds at most one signal.
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

// prepareDir makes the directory of requests and states. It refuses a directory that is not on
// tmpfs, because states hold private keys, unless trustDisk is true.
func prepareDir(dir string, trustDisk bool) error {
	if !trustDisk {
		if err := atomicfile.RequireMemory(dir); err != nil {
			return fmt.Errorf("directory for devices: %w: keys would reach a disk: mount a "+
				"tmpfs there, or pass --trust-disk if the disk is yours", err)
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make directory for devices: %w", err)
	}
	return nil
}
