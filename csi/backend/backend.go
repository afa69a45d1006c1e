package backend

import (
	"context"
	"errors"
	"fmt"
)

// Errors of backends.
var (
	// ErrMissing matches when there is nothing for that volume: it was never provisioned here, or
	// its file or disk is gone.
	ErrMissing = errors.New("no backing for this volume")
	// ErrFull matches when there is not enough room.
	ErrFull = errors.New("not enough room")
	// ErrExists matches when a copy was to be made where there is something already.
	ErrExists = errors.New("volume has a backing already")
	// ErrNoCopy matches when this backend makes no copies.
	ErrNoCopy = errors.New("no copies of volumes in this backend")
	// ErrName matches names that are not made of 1 to 128 of the characters a-z, A-Z, 0-9, '-', '_'
	// and '.', a dot not first.
	ErrName = errors.New("not a plain name")
)

// Device is what a volume is on.
type Device struct {
	// Path is the node of the block device, Number its device number.
	Path   string
	Number uint64
	// ID stays with what is below, over reboots.
	ID string
}

// Backend keeps the ciphertext of volumes. All methods but Copy are idempotent, and all may be
// called from several goroutines for different volumes.
type Backend interface {
	// Provision makes room of at least size bytes for the volume. Room that it has already is kept
	// and grown, never emptied.
	Provision(ctx context.Context, volume string, size int64) error
	// Attach returns the block device of the volume; ErrMissing when there is none.
	Attach(ctx context.Context, volume string) (Device, error)
	// Detach undoes Attach. What is gone already is no error.
	Detach(ctx context.Context, volume string) error
	// Expand makes the room, and the device when it is attached, at least size bytes large.
	Expand(ctx context.Context, volume string, size int64) error
	// Copy makes room of at least size bytes for the volume dst, with the bytes of src where src
	// has any; what is beyond reads as zero. Nobody may write to src meanwhile. It is all there
	// when Copy returns, and nothing is after an error or a crash; ErrExists when dst has room
	// already.
	Copy(ctx context.Context, dst, src string, size int64) error
	// Delete frees the volume's space. A volume that does not exist is no error.
	Delete(ctx context.Context, volume string) error
	// Destroys reports whether Delete takes what is on the backing with it; where not, that is only
	// given up, and stays.
	Destroys() bool
	// Capacity is the size of the largest volume that Provision would have room for, bytes.
	Capacity(ctx context.Context) (int64, error)
}

// maxName is the longest volume id that CSI has, bytes.
const maxName = 128

// CheckName refuses names of which no file name can be made as they are (ErrName).
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
