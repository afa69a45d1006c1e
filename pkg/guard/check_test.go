package guard

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

func TestCheck(t *testing.T) {
	nettest.NeedBPF(t)
	dir := filepath.Join(t.TempDir(), "kubeveil")
	errtest.Check(t, Check(dir))
	if _, err := os.Stat(dir); err == nil {
		t.Error("it made the folder of pins")
	}
}

// noBPF is the environment variable of the test process in which bpf(2) returns ENOSYS, as in a
// kernel that was built without it.
const noBPF = "KUBEVEIL_TEST_NO_BPF"

func TestCheckWithoutBPF(t *testing.T) {
	if os.Getenv(noBPF) != "" {
		errtest.Must(t, forbidBPF())
		err := Check(t.TempDir())
		if !errors.Is(err, ErrNotSupported) ||
			!strings.Contains(err.Error(), "CONFIG_BPF_SYSCALL") {
			t.Errorf("got %v, want %v and what to do", err, ErrNotSupported)
		}
		return
	}
	nettest.NeedBPF(t)
	program, err := os.Executable()
	errtest.Must(t, err)
	c := exec.CommandContext(t.Context(), program, "-test.run=^TestCheckWithoutBPF$")
	c.Env = append(os.Environ(), noBPF+"=1")
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
}

// forbidBPF makes bpf(2) return ENOSYS in all threads of this process, for good.
func forbidBPF() error {
	filter := []unix.SockFilter{
		// the number is the first word of struct seccomp_data
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_BPF, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return errno
	}
	return nil
}
