package backend

import (
	"context"
	"fmt"
	"time"

	"github.com/kubeveil/kubeveil/csi/internal/blk"
)

// lookPatience is how long a disk may take to report its id and size; one that hangs is skipped.
const lookPatience = 5 * time.Second

// question reads the size of the device at a path, or else its id.
type question struct {
	path   string
	number uint64
	size   bool
}

// look is a query to a disk. Its result is set when done is closed; late is closed when it takes
// too long.
type look struct {
	path       string
	done, late chan struct{}
	id         string
	size       int64
	err        error
}

// look queries a disk, or joins the query under way: a disk that hangs blocks one thread for any
// number of queries. Some disks must answer even to report their id (virtio's serial).
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

// wait waits for the result. It returns the error of the query, an error that the query takes too
// long, or the error of ctx.
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
