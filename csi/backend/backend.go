package backend

import (
	"context"
	"errors"
	"fmt"
)

// Errors of backends.
var (
	// ErrMissing matches when the volume has no backing here: it was never provisioned, or its file
	// or disk is gone.
	ErrMissing = errors.New("no backing for this volume")
	// ErrFull matches when there is not enough space.
	ErrFull = errors.New("not enough room")
	// ErrExists matches when the destination of a copy exists.
	ErrExists = errors.New("volume has a backing already")
	// ErrNoCopy matches when this backend cannot copy.
	ErrNoCopy = errors.New("no copies of volumes in this backend")
	// ErrName matches names that are not made of 1 to 128 of the characters a-z, A-Z, 0-9, '-', '_'
	// and '.', a dot not first.
	ErrName = errors.New("not a plain name")
)

// Device is the block device of a volume.
type Device struct {
	// Path is the node of the block device, Number its device number.
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
	// Attach returns the block device of the volume; ErrMissing when it has none.
	Attach(ctx context.Context, volume string) (Device, error)
	// Detach undoes Attach. It may be repeated.
	Detach(ctx context.Context, volume string) error
	// Expand grows the allocation, and an attached device, to at least size bytes.
	Expand(ctx context.Context, volume string, size int64) error
	// Copy allocates at least size bytes for the volume dst and copies src into it; the rest reads
	// as zero. The caller ensures that src is not written meanwhile. When Copy returns, the copy is
	// on stable storage. After an error or a crash dst does not exist. The error is ErrExists when
	// dst has an allocation.
	Copy(ctx context.Context, dst, src string, size int64) error
	// Delete frees the volume's space. It returns nil if the volume does not exist.
	Delete(ctx context.Context, volume string) error
	// Destroys reports whether Delete destroys the data. If false, Delete only releases the
	// backing.
	Destroys() bool
	// Capacity returns the size in bytes of the largest volume that Provision has space for.
	Capacity(ctx context.Context) (int64, error)
}

// maxName is the longest volume id that CSI has, bytes.
const maxName = 128

// CheckName refuses with ErrName a name that cannot be a file name as it is.
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
