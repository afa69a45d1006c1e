package bench

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// New begins a result on this machine: schema, kernel, CPUs, the time and, where
// dir is in a git tree, the commit.
func New(platform, dir string) (*Result, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return nil, fmt.Errorf("uname: %w", err)
	}
	return &Result{
		Schema:   Schema,
		Commit:   commit(dir),
		Kernel:   unix.ByteSliceToString(u.Release[:]),
		CPUs:     runtime.NumCPU(),
		CPU:      cpuModel(),
		Platform: platform,
		Started:  time.Now().UTC().Truncate(time.Second),
	}, nil
}

// cpuModel returns the model of the CPU as /proc/cpuinfo names it, "" where it does not.
func cpuModel() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// commit is empty where there is no git or no tree: a result of an unpacked
// archive is still a result.
func commit(dir string) string {
	out, err := exec.Command("git", "-C", dir, "rev-parse", "HEAD").Output()
	if err != nil {
		return ""
	}
	hash := strings.TrimSpace(string(out))
	if changes, err := exec.Command("git", "-C", dir, "status",
		"--porcelain").Output(); err == nil && len(changes) > 0 {
		hash += "-dirty"
	}
	return hash
}

// Caveat says in one sentence what figures from this machine are good for.
func (r *Result) Caveat() string {
	cores := fmt.Sprintf("%d cores", r.CPUs)
	if r.CPUs == 1 {
		cores = "1 core"
	}
	switch r.Platform {
	case Namespaces:
		return "Namespaces on one kernel, " + cores + ": ratios mean something, absolutes do not."
	case Emulated:
		return "Emulated machines on " + cores +
			": ratios of two emulated things mean something, absolutes do not."
	case SEVSNP, TDX:
		return "Confidential machines (" + r.Platform + "), " + cores + "."
	}
	return "Platform " + r.Platform + ", " + cores + "."
}
