package backend

import (
	"context"
	"errors"
	"fmt"
)

// Errors of backends.
var (
	// ErrMissing means that the volume has no backing on this node: it was never provisioned, or
	// its file or disk is gone.
	ErrMissing = errors.New("no backing for this volume")
	// ErrFull means that there is not enough space.
	ErrFull = errors.New("not enough room")
	// ErrExists means that the destination of a copy exists.
	ErrExists = errors.New("volume has a backing already")
	// ErrNoCopy means that the backend cannot copy volumes.
	ErrNoCopy = errors.New("no copies of volumes in this backend")
	// ErrName is the error for an invalid name. A valid name has 1 to 128 of the characters a-z,
	// A-Z, 0-9, '-', '_' and '.', and does not begin with a dot.
	ErrName = errors.New("not a plain name")
)

// Device is the block device of a volume.
type Device struct {
	// Path is the path of the block device. Number is its device number.
	Path   string
	Number uint64
	// ID is stable across reboots.
	ID string
}

// Backend keeps the ciphertext of volumes. All methods but Copy are idempotent, and all may be
// called from several goroutines for different volumes.
type Backend interface {
	// Provision allocates at least size bytes for the volume. An existing allocation is kept and
	// grown, never emptied.
	Provision(ctx context.Context, volume string, size int64) error
	// Attach returns the block device of the volume, or ErrMissing if it has no backing.
	Attach(ctx context.Context, volume string) (Device, error)
	// Detach releases the device that Attach returned.
	Detach(ctx context.Context, volume string) error
	// Expand grows the allocation, and an attached device, to at least size bytes.
	Expand(ctx context.Context, volume string, size int64) error
	// Copy allocates at least size bytes for the volume dst and copies src into it. Bytes after the
	// copied ones read as zero. The caller ensures that src is not written meanwhile. When Copy
	// returns, the copy is on stable storage. After an error or a crash dst does not exist. If dst
	// already has an allocation, Copy keeps it and returns ErrExists.
	Copy(ctx context.Context, dst, src string, size int64) error
	// Delete frees the volume's space. It returns nil if the volume does not exist.
	Delete(ctx context.Context, volume string) error
	// Destroys reports whether Delete destroys the data. If false, Delete only releases the
	// backing.
	Destroys() bool
	// Capacity returns the size in bytes of the largest volume that Provision has space for.
	Capacity(ctx context.Context) (int64, error)
}

// maxName is the length of the longest volume id in CSI, in bytes.
const maxName = 128

// CheckName returns ErrName if volume is not usable as a file name without escaping.
func CheckName(volume string) error {
	ok := len(volume) > 0 && len(volume) <= maxName && volume[0] != '.'
	for _, c := range volume {
		ok = ok && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
			c == '-' || c == '_' || c == '.')
	}
	if !ok {
		return fmt.Errorf("volume %q: %w", volume, ErrName)
	}
	return nil
}
