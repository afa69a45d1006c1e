// Package disk reads and writes a file at random places, past the page cache, with a given number
// of requests at once, and measures the rate. It needs no other program, so it also runs on
// machines without fio.
//
// It promises that requests touch only parts of the file that Fill has written, and that it counts
// only complete requests. It refuses files that cannot be opened with O_DIRECT. Start reading at
// Job.
package disk

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Job describes a measurement. All fields must be set, except Write.
type Job struct {
	// File is a file that Fill has written. Size is its size in bytes, a multiple of Block.
	File string
	Size int64
	// Block is the size of a request in bytes, a multiple of 4096. Depth is the number of
	// concurrent requests.
	Block int64
	Depth int
	// Write selects writes; otherwise it reads.
	Write bool
	// For is the duration of the measurement.
	For time.Duration
}

// Result holds the figures of a Job.
type Result struct {
	// Ops is the number of complete requests. Took is the duration of the whole measurement.
	Ops  int64         `json:"ops"`
	Took time.Duration `json:"took"`
	// P50 and P99 are the median and the 99th percentile of the time that a request took.
	P50 time.Duration `json:"p50"`
	P99 time.Duration `json:"p99"`
}

// IOPS returns the requests per second.
func (r Result) IOPS() float64 { return float64(r.Ops) / r.Took.Seconds() }

const (
	align = 4096
	// piece is the number of bytes that Fill writes at once.
	piece    = 1 << 20
	maxDepth = 1024
)

// Fill creates the file, writes size bytes that a disk cannot compress, and syncs them. size must
// be a multiple of 1 MiB.
func Fill(ctx context.Context, path string, size int64) error {
	if size < piece || size%piece != 0 {
		return fmt.Errorf("fill %s: %d bytes: want a multiple of %d", path, size, piece)
	}

	fd, err := unix.Open(path, unix.O_CREAT|unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	b, free, err := buffer(piece)
	if err != nil {
		return err
	}
	defer free()

	random := rand.NewChaCha8([32]byte{1})
	for at := int64(0); at < size; at += piece {
		if err := ctx.Err(); err != nil {
			return err
		}
		_, _ = random.Read(b) // never fails (math/rand/v2)
		if n, err := unix.Pwrite(fd, b, at); err != nil || n != len(b) {
			return fmt.Errorf("fill %s at %d: %d bytes: %w", path, at, n,
				errors.Join(err, errShort(n == len(b))))
		}
	}

	if err := unix.Fsync(fd); err != nil {
		return &os.PathError{Op: "fsync", Path: path, Err: err}
	}
	return nil
}

var errCut = errors.New("cut short")

// errShort returns nil if all bytes were transferred, otherwise errCut.
func errShort(all bool) error {
	if all {
		return nil
	}
	return errCut
}

// buffer returns memory aligned for O_DIRECT, and a function that releases it.
func buffer(size int) ([]byte, func(), error) {
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, nil, fmt.Errorf("memory of %d bytes: %w", size, err)
	}
	return b, func() { _ = unix.Munmap(b) }, nil
}

// check returns an error if a field of the job is out of range.
func (j Job) check() error {
	if j.Block < align || j.Block%align != 0 || j.Size < j.Block || j.Depth < 1 ||
		j.Depth > maxDepth || j.For <= 0 {
		return fmt.Errorf("%d bytes in blocks of %d, %d at once, for %v: want blocks of a "+
			"multiple of %d that fit, and 1 to %d at once",
			j.Size, j.Block, j.Depth, j.For, align, maxDepth)
	}
	return nil
}

// Run runs the job and returns its figures. The first request that fails ends the job, and Run
// returns its error.
func Run(ctx context.Context, j Job) (Result, error) {
	if err := j.check(); err != nil {
		return Result{}, err
	}

	fd, err := unix.Open(j.File, unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return Result{}, &os.PathError{Op: "open", Path: j.File, Err: err}
	}
	defer unix.Close(fd)
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, j.For)
	defer cancel()
	times, errs := make([][]time.Duration, j.Depth), make([]error, j.Depth)

	var all sync.WaitGroup
	for i := range j.Depth {
		all.Go(func() {
			if times[i], errs[i] = j.submit(ctx, fd); errs[i] != nil {
				cancel()
			}
		})
	}

	all.Wait()
	r := Result{Took: time.Since(began)}
	if err := errors.Join(errs...); err != nil {
		return Result{}, err
	}
	took := slices.Concat(times...)
	if len(took) == 0 {
		return Result{}, fmt.Errorf("%s: no request was answered within %v", j.File, j.For)
	}

	slices.Sort(took)
	at := func(share float64) time.Duration { return took[int(share*float64(len(took)-1))] }
	r.Ops, r.P50, r.P99 = int64(len(took)), at(0.5), at(0.99)
	return r, nil
}

// submit makes one request after the other until ctx is done, and returns the time of each.
func (j Job) submit(ctx context.Context, fd int) (times []time.Duration, err error) {
	b, free, err := buffer(int(j.Block))
	if err != nil {
		return nil, err
	}
	defer free()
	request := unix.Pread
	if j.Write {
		request = unix.Pwrite
	}
	for ctx.Err() == nil {
		at := rand.Int64N(j.Size/j.Block) * j.Block
		if j.Write {
			// Write other bytes each time: a write of equal bytes might change nothing.
			b[0]++
		}
		began := time.Now()
		n, err := request(fd, b, at)
		if err != nil || n != len(b) {
			return nil, fmt.Errorf("%s at %d: %d bytes: %w", j.File, at, n,
				errors.Join(err, errShort(n == len(b))))
		}
		times = append(times, time.Since(began))
	}
	return times, nil
}
