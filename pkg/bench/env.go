package bench

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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
		Go:       runtime.Version(),
		Memory:   memory(),
		Load:     load(),
		Command:  append([]string{filepath.Base(os.Args[0])}, os.Args[1:]...),
		Platform: platform,
		Started:  time.Now().UTC().Truncate(time.Second),
	}, nil
}

// cpuModel returns the model of the CPU as /proc/cpuinfo names it, with family, model and stepping,
// "" where it does not.
func cpuModel() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	fields := map[string]string{}
	for line := range strings.Lines(string(b)) {
		k, v, ok := strings.Cut(line, ":")
		if k = strings.TrimSpace(k); ok && fields[k] == "" {
			fields[k] = strings.TrimSpace(v)
		}
	}
	name := fields["model name"]
	if name != "" && fields["cpu family"] != "" {
		name += fmt.Sprintf(" (family %s, model %s, stepping %s)", fields["cpu family"],
			fields["model"], fields["stepping"])
	}
	return name
}

// memory returns the machine's memory in MiB, or 0 where the kernel does not report it.
func memory() int {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return int(uint64(info.Totalram) * uint64(info.Unit) >> 20)
}

// load returns the load averages over 1, 5 and 15 minutes, or "" where the kernel does not report
// them.
func load() string {
	b, _ := os.ReadFile("/proc/loadavg")
	fields := strings.Fields(string(b))
	return strings.Join(fields[:min(3, len(fields))], " ")
}

// commit returns an empty string where there is no git or no tree, because a result of an unpacked
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

// Caveat states in one sentence what figures from this machine are good for.
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
