package labhost

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// runTime is the layout of the time with which the name of a run's folder begins, in UTC. The
	// process id follows and, if the name exists, a number.
	runTime = "20060102-150405.000"
	// keptRuns is the number of processes whose artefacts are kept after their end.
	keptRuns = 5
)

// runName matches the folder names of NewRun. No other folder is pruned.
var runName = regexp.MustCompile(`^\d{8}-\d{6}\.\d{3}-(\d+)(-\d+)?$`)

// NewRun makes a folder in base for the artefacts of a run. It removes the folders of old runs,
// except the last few and the folders of running processes.
func NewRun(base string) (string, error) {
	if err := os.MkdirAll(base, 0o755); err != nil {
		return "", err
	}
	if err := prune(base, keptRuns); err != nil {
		return "", err
	}
	name := filepath.Join(base, fmt.Sprintf("%s-%d", time.Now().UTC().Format(runTime), os.Getpid()))
	for i := 1; ; i++ {
		dir := name
		if i > 1 {
			dir = fmt.Sprintf("%s-%d", name, i)
		}
		if err := os.Mkdir(dir, 0o755); !errors.Is(err, fs.ErrExist) {
			return dir, err
		}
	}
}

// prune removes the folders of runs in base. It keeps the folders of the last keep processes, and
// of all running processes. Other processes may prune at the same time.
func prune(base string, keep int) error {
	entries, err := os.ReadDir(base) // by name, so the oldest first
	if err != nil {
		return err
	}
	kept := map[string]bool{}
	var errs []error
	for i := len(entries) - 1; i >= 0; i-- {
		match := runName.FindStringSubmatch(entries[i].Name())
		if match == nil || !entries[i].IsDir() {
			continue
		}
		pid := match[1]
		if kept[pid] || len(kept) < keep || lives(pid) {
			kept[pid] = true
			continue
		}
		errs = append(errs, os.RemoveAll(filepath.Join(base, entries[i].Name())))
	}
	return errors.Join(errs...)
}

// lives reports whether a process with this id exists.
func lives(pid string) bool {
	id, err := strconv.Atoi(pid)
	return err != nil || !errors.Is(unix.Kill(id, 0), unix.ESRCH)
}
