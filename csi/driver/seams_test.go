package driver

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/kubeveil/kubeveil/csi/backend"
	"github.com/kubeveil/kubeveil/csi/internal/blk/blktest"
	"github.com/kubeveil/kubeveil/csi/volume"
)

// states is a store in memory.
type states struct {
	mu       sync.Mutex
	byVolume map[string]volume.State
	revision map[string]int
}

// stepStore is the store as a process uses it. Each change is a step.
type stepStore struct {
	*states
	step func(string) error
}

func (s *states) Get(_ context.Context, v string) (volume.State, volume.Revision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, ok := s.byVolume[v]
	if !ok {
		return volume.State{}, "", fmt.Errorf("volume %s: %w", v, volume.ErrNotFound)
	}
	return st, volume.Revision(fmt.Sprint(s.revision[v])), nil
}

func (s *states) List(context.Context) ([]volume.State, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.byVolume)), nil
}

func (s stepStore) Create(_ context.Context, st volume.State) error {
	_, err := s.change(st.Volume, "", func() { s.byVolume[st.Volume] = st })
	return err
}

func (s stepStore) Update(_ context.Context, st volume.State,
	r volume.Revision) (volume.Revision, error) {
	return s.change(st.Volume, r, func() { s.byVolume[st.Volume] = st })
}

func (s stepStore) Remove(_ context.Context, v string, r volume.Revision) error {
	_, err := s.change(v, r, func() { delete(s.byVolume, v) })
	return err
}

// change runs an operation of a caller that knows revision r. An empty revision means that the
// state must not exist.
func (s stepStore) change(v string, r volume.Revision, do func()) (volume.Revision, error) {
	if err := s.step("store"); err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.byVolume[v]
	switch {
	case r == "" && ok:
		return "", volume.ErrExists
	case r != "" && (!ok || string(r) != fmt.Sprint(s.revision[v])):
		return "", volume.ErrConflict
	}
	s.revision[v]++
	do()
	return volume.Revision(fmt.Sprint(s.revision[v])), nil
}

// memory is a backend of disks in memory.
type memory struct{ *machine }

func (b memory) Provision(_ context.Context, v string, size int64) error {
	if err := b.step("provision"); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.disks[v] == nil {
		if size > b.room {
			return fmt.Errorf("%w: %d bytes", backend.ErrFull, size)
		}
		b.put(v, blktest.New(size))
	}
	return nil
}

func (b memory) put(v string, d *blktest.Disk) {
	d.Hook = func(op string, _ int64, _ int) error {
		if op == "read" {
			return nil
		}
		return b.step("disk " + op)
	}
	b.disks[v], b.numbers[v] = d, uint64(0x700+len(b.numbers))
}

func (b memory) Attach(_ context.Context, v string) (backend.Device, error) {
	if err := b.step("attach"); err != nil {
		return backend.Device{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.disks[v] == nil {
		return backend.Device{}, backend.ErrMissing
	}
	return backend.Device{Path: "/dev/" + v, Number: b.numbers[v], ID: "fake:" + v}, nil
}

func (b memory) Detach(context.Context, string) error { return b.step("detach") }

func (b memory) Expand(_ context.Context, v string, size int64) error {
	if err := b.step("expand"); err != nil {
		return err
	}
	d := b.disk(v)
	if have, err := d.Size(); err != nil || have >= size {
		return err
	}
	if size > b.room {
		return fmt.Errorf("%w: %d bytes", backend.ErrFull, size)
	}
	d.Resize(size)
	return nil
}

func (b memory) Copy(_ context.Context, dst, src string, size int64) error {
	if err := b.step("copy"); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.disks[dst] != nil {
		return backend.ErrExists
	}
	c := b.disks[src].Clone()
	c.Resize(size)
	b.put(dst, c)
	return nil
}

func (b memory) Delete(_ context.Context, v string) error {
	if err := b.step("delete"); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.disks, v)
	return nil
}

func (memory) Destroys() bool { return true }

func (b memory) Capacity(context.Context) (int64, error) { return b.room, nil }
