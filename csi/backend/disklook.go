package backend

import (
	"context"
	"fmt"
	"time"

	"github.com/kubeveil/kubeveil/csi/internal/blk"
)

// lookPatience is how long a disk may take to report its id or size. A disk that takes longer is
// skipped.
const lookPatience = 5 * time.Second

// question identifies a query to the device at path. It queries the size if size is true, otherwise
// the id.
type question struct {
	path   string
	number uint64
	size   bool
}

// look is a query to a disk that is under way. Its result, id or size, and err are valid once done
// is closed. late is closed after lookPatience.
type look struct {
	path       string
	done, late chan struct{}
	id         string
	size       int64
	err        error
}

// look starts a query to a disk, or returns the equal query that is under way. So a disk that hangs
// blocks only one thread per question. Even a query for the id may hang, because the kernel
// requests the id of some disks from the disk (virtio's serial).
func (d *Disks) look(q question) *look {
	d.mu.Lock()
	defer d.mu.Unlock()
	if l := d.looks[q]; l != nil {
		return l
	}
	if d.looks == nil {
		d.looks = map[question]*look{}
	}

	l := &look{path: q.path, done: make(chan struct{}), late: make(chan struct{})}
	d.looks[q] = l
	late := time.AfterFunc(lookPatience, func() { close(l.late) })
	go func() {
		if q.size {
			l.size, l.err = d.sizeOf(q.path)
		} else {
			l.id, l.err = blk.ID(d.sys(), q.number)
		}
		if l.err != nil {
			l.err = fmt.Errorf("disk %s: %w", q.path, l.err)
		}
		late.Stop()
		d.mu.Lock()
		delete(d.looks, q)
		d.mu.Unlock()
		close(l.done)
	}()

	return l
}

// wait waits for the result. It returns the error of the query, context.DeadlineExceeded if the
// query takes too long, or the error of ctx.
func (l *look) wait(ctx context.Context) error {
	select {
	case <-l.done:
		return l.err
	case <-l.late:
		return fmt.Errorf("disk %s: no answer within %v: %w", l.path, lookPatience,
			context.DeadlineExceeded)
	case <-ctx.Done():
		return fmt.Errorf("disk %s: %w", l.path, ctx.Err())
	}
}

func (d *Disks) sizeOf(path string) (int64, error) {
	if d.Size != nil {
		return d.Size(path)
	}
	return deviceSize(path)
}

func deviceSize(path string) (int64, error) {
	d, err := blk.OpenShared(path)
	if err != nil {
		return 0, err
	}
	defer d.Close()
	return d.Size()
}
