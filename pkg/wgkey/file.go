package wgkey

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/atomicfile"
)

// fileSize is the size in bytes of a key file, which holds the key in base64 and a newline.
const fileSize = 45

// ErrFile matches the errors of LoadOrCreate for a file that exists and must not be used. The file
// is not changed.
var ErrFile = errors.New("key file refused")

// LoadOrCreate reads the private key in the file at path. If there is no file, it makes a key,
// writes it there with mode 0600 and returns created. Missing directories are made with mode 0700.
// It refuses a file that is a symbolic link, has another mode or owner, or does not hold exactly
// one key (ErrFile), and does not change it. Unless allowDisk is set, it also refuses every path
// that is not on tmpfs or ramfs: the owner of a disk can read what is on it.
func LoadOrCreate(path string, allowDisk bool) (key Private, created bool, err error) {
	if err := checkPlace(path, allowDisk); err != nil {
		return Private{}, false, err
	}
	key, err = load(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, false, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return Private{}, false, fmt.Errorf("private key: %w", err)
	}
	if err := checkDir(filepath.Dir(path)); err != nil {
		return Private{}, false, err
	}
	if key, err = Generate(); err != nil {
		return Private{}, false, err
	}
	switch err := atomicfile.Create(path, key.encode(), 0o600); {
	case errors.Is(err, fs.ErrExist):
		// Another process created the file meanwhile. Its key is the node's key.
		key, err = load(path)
		return key, false, err
	case err != nil:
		return Private{}, false, fmt.Errorf("private key: %w", err)
	}
	return key, true, nil
}

// Replace generates a key and writes it to the file at path, in place of the key there. The file
// must be one that LoadOrCreate accepts.
func Replace(path string) (Private, error) {
	if _, err := load(path); err != nil {
		return Private{}, err
	}
	key, err := Generate()
	if err != nil {
		return Private{}, err
	}
	if err := atomicfile.Write(path, key.encode(), 0o600); err != nil {
		return Private{}, fmt.Errorf("private key: %w", err)
	}
	return key, nil
}

// Check returns the error with which LoadOrCreate would refuse the path. It changes nothing. It
// returns nil if the file does not exist.
func Check(path string, allowDisk bool) error {
	if err := checkPlace(path, allowDisk); err != nil {
		return err
	}
	_, err := load(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := checkDir(filepath.Dir(path)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func checkPlace(path string, allowDisk bool) error {
	if allowDisk {
		return nil
	}
	if err := atomicfile.RequireMemory(path); err != nil {
		return fmt.Errorf("private key: %w: the disk's owner could read it: put keyFile on a "+
			"tmpfs such as /run, or set trustDisk if it is yours", err)
	}
	return nil
}

// load reads an existing key file. The error matches fs.ErrNotExist when there is no file.
func load(path string) (Private, error) {
	// With O_NONBLOCK, the open does not hang if the path is a FIFO.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) {
		return Private{}, refuse(path, "it is a symbolic link, so another user may choose the "+
			"key; remove the link, or name the file itself")
	}

	if err != nil {
		return Private{}, fmt.Errorf("open private key: %w",
			&fs.PathError{Op: "open", Path: path, Err: err})
	}

	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	if err := checkFile(f); err != nil {
		return Private{}, err
	}
	if err := checkDir(filepath.Dir(path)); err != nil {
		return Private{}, err
	}
	text, err := io.ReadAll(io.LimitReader(f, fileSize+1))
	if err != nil {
		return Private{}, fmt.Errorf("read private key: %w", err)
	}

	key, err := parse(text)
	if err != nil {
		return Private{}, refuse(path, "%v; if no backup can be restored, move the file away and "+
			"start again: the node then makes a new key and publishes it", err)
	}

	return key, nil
}

func checkFile(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("stat private key %s: %w", f.Name(), err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return refuse(f.Name(), "it is not a regular file; name another keyFile, or move it away")
	case int(st.Uid) != os.Geteuid():
		return refuse(f.Name(), "it belongs to user %d, not to user %d who runs this; others may "+
			"know the key: move it away and start again", st.Uid, os.Geteuid())
	case st.Mode&0o7777 != 0o600:
		return refuse(f.Name(), "its mode is %04o, not 0600; if no other user has read it, chmod "+
			"0600, else move it away and start again", st.Mode&0o7777)
	}
	return nil
}

// checkDir returns an error if another user could replace files in the directory.
func checkDir(dir string) error {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return fmt.Errorf("stat directory of private key %s: %w", dir, err)
	}
	if st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return refuse(dir, "the directory belongs to user %d, who could exchange the key; use one "+
			"of your own", st.Uid)
	}
	if st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0 {
		return refuse(dir, "the directory's mode is %04o, so others could exchange the key; "+
			"chmod 0700", st.Mode&0o7777)
	}
	return nil
}

func refuse(path, format string, args ...any) error {
	return fmt.Errorf("%w: %s: %s", ErrFile, path, fmt.Sprintf(format, args...))
}

// encode returns the content of a key file.
func (k Private) encode() []byte {
	b := k.Bytes()
	return append(base64.StdEncoding.AppendEncode(nil, b[:]), '\n')
}

// parse parses the content of a key file. Its errors contain no part of the text.
func parse(text []byte) (Private, error) {
	if len(text) == 0 {
		return Private{}, errors.New("it is empty")
	}
	if text[len(text)-1] == '\n' {
		text = text[:len(text)-1]
	}
	if len(text) != fileSize-1 {
		return Private{}, fmt.Errorf("it does not hold one line of %d characters", fileSize-1)
	}
	// Decode skips line breaks; the length check below catches them.
	var b [Size + 1]byte
	n, err := base64.StdEncoding.Strict().Decode(b[:], text)
	if err != nil || n != Size {
		return Private{}, fmt.Errorf("its content is not base64 of %d bytes", Size)
	}
	if [Size]byte(b[:Size]) == [Size]byte{} {
		return Private{}, errors.New("its key is all zero")
	}
	return newPrivate([Size]byte(b[:Size])), nil
}
