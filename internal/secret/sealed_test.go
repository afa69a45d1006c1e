package secret

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

func TestSealedMemoryIsReadAndNotWrittenByTheOtherSide(t *testing.T) {
	maker, err := NewSealed(5000)
	errtest.Must(t, err)
	defer maker.Close()
	copy(maker.Bytes[4990:], "handover")
	errtest.Must(t, maker.Seal())

	fd, err := unix.FcntlInt(uintptr(maker.FD), unix.F_DUPFD_CLOEXEC, 0)
	errtest.Must(t, err)
	reader, err := OpenSealed(fd)
	errtest.Must(t, err)
	defer reader.Close()

	if !bytes.Equal(reader.Bytes[4990:4998], []byte("handover")) {
		t.Error("the other side reads something else")
	}
	if _, err := unix.Write(reader.FD, []byte("x")); err == nil {
		t.Error("the other side can write")
	}
	if _, err := unix.Mmap(reader.FD, 0, 1, unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		t.Error("the other side can map it for writing")
	}
	if unix.Ftruncate(reader.FD, 1) == nil || unix.Ftruncate(maker.FD, 9000) == nil {
		t.Error("the size can be changed")
	}

	maker.Close()
	if !bytes.Equal(reader.Bytes, make([]byte, 5000)) {
		t.Error("the maker closed it and did not overwrite it")
	}
}

func TestUnsealedMemoryIsRefused(t *testing.T) {
	for _, tc := range []struct {
		name  string
		size  int64
		seals int
	}{
		{"no seals", 100, 0},
		{"writable", 100, unix.F_SEAL_SHRINK | unix.F_SEAL_GROW},
		{"may shrink", 100, unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_GROW},
		{"empty", 0, seals},
		{"too large", maxSealed + 1, seals},
	} {
		t.Run(tc.name, func(t *testing.T) {
			fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
			errtest.Must(t, err)
			defer unix.Close(fd)
			errtest.Must(t, unix.Ftruncate(fd, tc.size))
			errtest.Must(t, errtest.Of(unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, tc.seals)))
			if _, err := OpenSealed(fd); err == nil {
				t.Error("it was mapped")
			}
		})
	}
}

func TestDescriptorThatIsNotMemoryIsRefused(t *testing.T) {
	var p [2]int
	errtest.Must(t, unix.Pipe2(p[:], unix.O_CLOEXEC))
	defer unix.Close(p[0])
	defer unix.Close(p[1])
	if _, err := OpenSealed(p[0]); err == nil {
		t.Error("a pipe was mapped")
	}
}
