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

// New returns a result with the properties of this machine, the current time and, if dir is in a
// git tree, the commit. It has no cases yet.
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

// cpuModel returns the model of the CPU from /proc/cpuinfo, with family, model and stepping, or ""
// if /proc/cpuinfo has no model name.
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

// commit returns the commit of the git tree at dir, with "-dirty" if the tree has changes. It
// returns an empty string without git or a tree, because runs from an unpacked archive are valid.
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

// Caveat returns one sentence about which figures from this platform are meaningful.
func (r *Result) Caveat() string {
	cores := fmt.Sprintf("%d cores", r.CPUs)
	if r.CPUs == 1 {
		cores = "1 core"
	}
	switch r.Platform {
	case Namespaces:
		return "Namespaces on one kernel, " + cores +
			": ratios are meaningful, absolute values are not."
	case Emulated:
		return "Emulated machines on " + cores +
			": ratios of two emulated sides are meaningful, absolute values are not."
	case SEVSNP, TDX:
		return "Confidential machines (" + r.Platform + "), " + cores + "."
	}
	return "Platform " + r.Platform + ", " + cores + "."
}
