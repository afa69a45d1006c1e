package supervisor

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// An instance is a veil-wg process, or the processes that follow each other in one pod. Several
// instances may share a directory. Each has a file <dir>/<id>.instance, which holds its number and
// whether it is ready, and which it locks (flock(2)) as long as it lives. The number is assigned at
// the first start of the instance and is greater than all others. A restarted container keeps the
// number of its pod, so the newer pod keeps the greater number.

const instanceSuffix = ".instance"

// maxInstances bounds the number of instance files.
const maxInstances = 16

type instance struct {
	dir, id string
	number  int
	file    *os.File
	ready   bool
	// passing reports whether the id is random and only for this start.
	passing bool
}

// checkInstance returns an error if id cannot be the name of a file.
func checkInstance(id string) error {
	if len(id) > 100 || strings.Trim(id, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return fmt.Errorf("instance %q: want at most 100 lower-case letters, digits and dashes", id)
	}
	return nil
}

// register makes this process the instance called id. If id is empty, it is a new instance, newer
// than all others.
func register(dir, id string) (*instance, error) {
	if err := checkInstance(id); err != nil {
		return nil, err
	}
	i := &instance{dir: dir, id: id, passing: id == ""}
	if i.passing {
		var b [8]byte
		rand.Read(b[:])
		i.id = "start-" + hex.EncodeToString(b[:])
	}

	// Closing the file wakes the instances that watch the directory.
	guard, err := os.OpenFile(filepath.Join(dir, "instances.lock"), os.O_RDWR|os.O_CREATE|
		unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("register instance: %w", err)
	}
	defer guard.Close()
	if err := unix.Flock(int(guard.Fd()), unix.LOCK_EX); err != nil {
		return nil, fmt.Errorf("register instance: %w", err)
	}

	known, err := numbers(dir)
	if err != nil {
		return nil, err
	}
	i.number = known[i.id]
	if i.number == 0 {
		for _, n := range known {
			i.number = max(i.number, n)
		}
		i.number++
	}
	i.prune(known)

	// Retry, because alive of another instance may hold the lock for a moment.
	for end := time.Now().Add(time.Second); ; time.Sleep(adoptedPoll) {
		file, held, err := tryLock(i.path())
		if err != nil {
			return nil, err
		}
		if held {
			i.file = file
			break
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("another veil-wg runs as instance %q", i.id)
		}
	}
	return i, i.write()
}

func (i *instance) path() string { return filepath.Join(i.dir, i.id+instanceSuffix) }

// write overwrites the whole file with one system call.
func (i *instance) write() error {
	if _, err := i.file.WriteAt(fmt.Appendf(nil, "%010d %-5t\n", i.number, i.ready), 0); err != nil {
		return fmt.Errorf("write instance: %w", err)
	}
	return nil
}

// setReady records whether the instance is ready, see Ready.
func (i *instance) setReady(ready bool) error {
	if i.ready == ready {
		return nil
	}
	i.ready = ready
	return i.write()
}

// superseded reports whether a newer instance runs.
func (i *instance) superseded() bool {
	known, err := numbers(i.dir)
	if err != nil {
		return false
	}
	for id, n := range known {
		if n > i.number && alive(filepath.Join(i.dir, id+instanceSuffix)) {
			return true
		}
	}
	return false
}

// close records that the instance is not ready, and releases its lock.
func (i *instance) close() {
	if i.passing {
		os.Remove(i.path())
	} else {
		_ = i.setReady(false)
	}
	i.file.Close()
}

// prune removes the oldest instance files beyond maxInstances, except those of running instances.
func (i *instance) prune(known map[string]int) {
	ids := make([]string, 0, len(known))
	for id := range known {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b string) int { return known[a] - known[b] })
	for len(ids) > maxInstances {
		file := filepath.Join(i.dir, ids[0]+instanceSuffix)
		if ids[0] != i.id && !alive(file) {
			os.Remove(file)
		}
		ids = ids[1:]
	}
}

// alive reports whether a process holds the lock of an instance file.
func alive(file string) bool {
	f, err := os.OpenFile(file, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// numbers returns the numbers of all instances by id. A file that cannot be read counts as the
// oldest.
func numbers(dir string) (map[string]int, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*"+instanceSuffix))
	if err != nil {
		return nil, fmt.Errorf("list instances: %w", err)
	}
	out := map[string]int{}
	for _, file := range files {
		n, _, err := readInstance(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		out[strings.TrimSuffix(filepath.Base(file), instanceSuffix)] = n
	}
	return out, nil
}

func readInstance(file string) (number int, ready bool, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, false, fmt.Errorf("read instance: %w", err)
	}
	f := strings.Fields(string(b))
	if len(f) != 2 {
		return 0, false, fmt.Errorf("read instance: %s contains %q", file, b)
	}
	number, err = strconv.Atoi(f[0])
	if err != nil {
		return 0, false, fmt.Errorf("read instance: %s: %w", file, err)
	}
	return number, f[1] == "true", nil
}

// Ready returns an error unless the instance called id is ready, which means that it serves the
// devices. An instance is also ready if it waits for an older veil-wg that cannot hand its devices
// over. It can serve only after that veil-wg has ended, which a rollout does once the new pod is
// ready.
func Ready(dir, id string) error {
	if err := checkInstance(id); err != nil {
		return err
	}
	file := filepath.Join(dir, id+instanceSuffix)
	_, ready, err := readInstance(file)
	if err != nil {
		return err
	}
	// The file of a killed instance may still say that it is ready.
	if !ready || !alive(file) {
		return fmt.Errorf("instance %q does not serve the devices yet, or a newer one does", id)
	}
	return nil
}
