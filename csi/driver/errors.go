package driver

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeveil/kubeveil/csi/backend"
	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/csi/mount"
	"github.com/kubeveil/kubeveil/csi/volume"
)

// coded is an error with its gRPC code.
type coded struct {
	code codes.Code
	text string
}

func (e *coded) Error() string { return e.text }

func invalid(format string, args ...any) error {
	return &coded{codes.InvalidArgument, fmt.Sprintf(format, args...)}
}

func failed(format string, args ...any) error {
	return &coded{codes.FailedPrecondition, fmt.Sprintf(format, args...)}
}

func notFound(format string, args ...any) error {
	return &coded{codes.NotFound, fmt.Sprintf(format, args...)}
}

func outOf(format string, args ...any) error {
	return &coded{codes.OutOfRange, fmt.Sprintf(format, args...)}
}

// refused maps kinds of refused disks to codes. All other kinds are DataLoss, because the disk does
// not have the bytes that were written.
var refused = map[crypt.Kind]codes.Code{
	crypt.NewerThanState: codes.FailedPrecondition,
	crypt.Unsupported:    codes.FailedPrecondition,
	crypt.NotEmpty:       codes.FailedPrecondition,
}

// table maps errors to gRPC codes (docs/design/0006-csi-driver.md). The first row that matches
// counts.
var table = []struct {
	err  error
	code codes.Code
}{
	{keyring.ErrSecret, codes.InvalidArgument},
	{keyring.ErrWrongKey, codes.InvalidArgument},
	{backend.ErrName, codes.InvalidArgument},
	{mount.ErrOption, codes.InvalidArgument},
	{volume.ErrExists, codes.AlreadyExists},
	{volume.ErrNotFound, codes.NotFound},
	{backend.ErrMissing, codes.NotFound},
	{volume.ErrSnapshot, codes.InvalidArgument},
	{volume.ErrSmaller, codes.OutOfRange},
	{keyring.ErrUnavailable, codes.Unavailable},
	{volume.ErrUnavailable, codes.Unavailable},
	{blk.ErrOther, codes.Unavailable},
	{backend.ErrFull, codes.ResourceExhausted},
	{blk.ErrNoLoop, codes.ResourceExhausted},
	{unix.ENOSPC, codes.ResourceExhausted},
	{mount.ErrDamaged, codes.DataLoss},
	{volume.ErrInUse, codes.FailedPrecondition},
	{dmcrypt.ErrInUse, codes.FailedPrecondition},
	{mount.ErrBusy, codes.FailedPrecondition},
	{volume.ErrDeleted, codes.FailedPrecondition},
	{volume.ErrTooLong, codes.FailedPrecondition},
	{backend.ErrNoCopy, codes.FailedPrecondition},
	{dmcrypt.ErrNoMapping, codes.FailedPrecondition},
	{dmcrypt.ErrNotSupported, codes.FailedPrecondition},
	{mount.ErrNoProgram, codes.FailedPrecondition},
	{mount.ErrPrivate, codes.FailedPrecondition},
	{keyring.ErrCorrupt, codes.FailedPrecondition},
	{errEnding, codes.Aborted},
	{volume.ErrInProgress, codes.Aborted},
	{volume.ErrConflict, codes.Aborted},
	{context.Canceled, codes.Canceled},
	{context.DeadlineExceeded, codes.DeadlineExceeded},
}

// Code returns the gRPC code of an error.
func Code(err error) codes.Code {
	var c *coded
	var r *crypt.RefusedError
	switch {
	case err == nil:
		return codes.OK
	case errors.As(err, &c):
		return c.code
	case errors.As(err, &r):
		if code, ok := refused[r.Kind]; ok {
			return code
		}
		return codes.DataLoss
	case errors.As(err, new(*volume.BusyError)), errors.As(err, new(*volume.TakenError)),
		errors.As(err, new(*keyring.BindingError)):
		return codes.FailedPrecondition
	}
	for _, row := range table {
		if errors.Is(err, row.err) {
			return row.code
		}
	}
	if s, ok := status.FromError(err); ok {
		return s.Code()
	}
	return codes.Internal
}
