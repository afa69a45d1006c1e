package nettest

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
)

// NewCgroup makes a cgroup v2 and returns its directory. The cgroup is removed at the end of the
// test, and must then be empty. The test is skipped if no cgroup v2 tree is mounted. It implies
// NeedRoot.
func NewCgroup(t testing.TB) string {
	t.Helper()
	NeedRoot(t)
	mounts := filetest.Read(t, "/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if len(f) < 3 || f[2] != "cgroup2" {
			continue
		}
		dir, err := os.MkdirTemp(f[1], "kubeveil-test-")
		errtest.Must(t, err)
		t.Cleanup(func() {
			if err := os.Remove(dir); err != nil {
				t.Errorf("remove cgroup: %v", err)
			}
		})
		return dir
	}
	Skip(t, NoKernelFeature, "no cgroup2 is mounted")
	return ""
}

// StartIn starts a command in a cgroup and a network namespace. The caller must end the process.
func StartIn(t testing.TB, cgroup string, ns *NS, cmd *exec.Cmd) {
	t.Helper()
	group, err := os.Open(cgroup)
	errtest.Must(t, err)
	defer group.Close()
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd())}
	ns.Run(t, cmd.Start)
}
