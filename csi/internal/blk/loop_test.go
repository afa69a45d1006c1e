package blk_test

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// A loop device of another file is not opened, because the kernel would query that file's server,
// which may be away. Other programs may open the device at any moment, so it suffices that one of
// several searches happens without an opening.
func TestLoopsOfOtherFilesAreNotOpened(t *testing.T) {
	nettest.NeedRoot(t)
	other, ours := sparse(t, 1<<20), sparse(t, 1<<20)
	errtest.Must(t, os.Rename(other, other+"-of-another"))
	foreign := attached(t, other+"-of-another")
	attached(t, ours)
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	errtest.Must(t, err)
	defer unix.Close(fd)
	errtest.Must(t, errtest.Of(unix.InotifyAddWatch(fd, foreign.Path, unix.IN_OPEN)))
	events := make([]byte, 4096)
	for range 10 {
		if found, err := blk.FindLoops(ours); len(found) != 1 || err != nil {
			t.Fatalf("%v, %v", found, err)
		}
		if _, err := unix.Read(fd, events); errors.Is(err, unix.EAGAIN) {
			return
		}
	}
	t.Errorf("%s is opened by every search for another file", foreign.Path)
}
