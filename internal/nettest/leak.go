package nettest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Run runs the tests of a package. It fails the package if the tests left goroutines, file
// descriptors (such as open network namespaces), mounts of namespaces or child processes behind.
// Before it checks, it calls each of ends, which close resources that the tests share. An error of
// one of ends fails the package too. The result is for os.Exit:
//
//	func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }
func Run(m *testing.M, ends ...func() error) int {
	before := holdings()
	code := m.Run()
	for _, end := range ends {
		if err := end(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	if code != 0 {
		return code
	}
	if leaks := settle(before, 5*time.Second); len(leaks) > 0 {
		fmt.Fprintf(os.Stderr, "the tests left behind:\n  %s\n", strings.Join(leaks, "\n  "))
		return 1
	}
	return 0
}

// settle waits until the process holds no more than before, at most for patience. It returns what
// the process still holds in addition then.
func settle(before map[string]int, patience time.Duration) []string {
	deadline := time.Now().Add(patience)
	for {
		leaks := more(before, holdings())
		if len(leaks) == 0 || time.Now().After(deadline) {
			return leaks
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// more returns a text for each count in after that is larger than in before.
func more(before, after map[string]int) []string {
	var out []string
	for what, n := range after {
		if extra := n - before[what]; extra > 0 {
			out = append(out, fmt.Sprintf("%d × %s", extra, what))
		}
	}
	slices.Sort(out)
	return out
}

// holdings counts the goroutines, descriptors, mounts and child processes of this process, by
// description.
func holdings() map[string]int {
	held := map[string]int{}
	for _, stack := range goroutines() {
		held["goroutine created by "+stack]++
	}
	for _, target := range descriptors() {
		held["descriptor of "+target]++
	}
	for _, mount := range namespaceMounts() {
		held["mount "+mount]++
	}
	for _, pid := range children() {
		held["child process "+pid]++
	}
	return held
}

// goroutines returns the creator of each goroutine, except the calling goroutine and those of the
// runtime and of package testing.
func goroutines() []string {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	var out []string
	for i, g := range strings.Split(string(buf), "\n\n") {
		if i == 0 || strings.Contains(g, "os/signal.") ||
			strings.Contains(g, "testing.(*M).startAlarm") || strings.Contains(g, "runtime/pprof") {
			continue
		}
		at := strings.LastIndex(g, "created by ")
		if at < 0 {
			continue
		}
		creator, _, _ := strings.Cut(g[at+len("created by "):], " in goroutine")
		first, _, _ := strings.Cut(creator, "\n")
		out = append(out, first)
	}
	return out
}

// descriptors returns the targets of all open descriptors, except those that the Go runtime opens
// once and keeps.
func descriptors() []string {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name()))
		if err != nil || strings.HasPrefix(target, "/proc/") ||
			strings.HasPrefix(target, "/dev/") && target != "/dev/net/tun" ||
			strings.HasPrefix(target, "anon_inode:[event") ||
			strings.HasPrefix(target, "anon_inode:[pidfd") ||
			strings.HasPrefix(target, "/sys/fs/cgroup") {
			continue
		}
		kind, _, _ := strings.Cut(target, ":[")
		out = append(out, kind)
	}
	return out
}

// testNamespace matches the path of a namespace that a test, or a benchmark that a test runs, made
// like ip-netns(8). The path contains the process ID.
var testNamespace = regexp.MustCompile(`^/run/netns/kv(?:test|bench)(\d+)-`)

// ofAnotherProcess reports whether another test process made the namespace at path. Tests of other
// packages may run at the same time in the same mount namespace.
func ofAnotherProcess(path string) bool {
	m := testNamespace.FindStringSubmatch(path)
	return m != nil && m[1] != strconv.Itoa(os.Getpid())
}

// namespaceMounts returns the mount points of namespaces (nsfs), except those of other test
// processes, and the mount points that BPFFS made.
func namespaceMounts() []string {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		head, tail, _ := strings.Cut(line, " - ")
		fields := strings.Fields(head)
		if len(fields) < 5 {
			continue
		}
		_, ours := bpffs.Load(fields[4])
		if ofAnotherProcess(fields[4]) {
			continue
		}
		if strings.HasPrefix(tail, "nsfs ") || strings.HasPrefix(tail, "bpf ") && ours {
			out = append(out, fields[4])
		}
	}
	return out
}

// children returns the command names of the child processes of this process.
func children() []string {
	files, _ := filepath.Glob("/proc/self/task/*/children")
	var out []string
	for _, f := range files {
		b, _ := os.ReadFile(f)
		for _, pid := range strings.Fields(string(b)) {
			comm, _ := os.ReadFile("/proc/" + pid + "/comm")
			out = append(out, strings.TrimSpace(string(comm)))
		}
	}
	return out
}
