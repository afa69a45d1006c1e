package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/volume"
)

// recordPatience is how long CheckDisks waits for all disks.
const recordPatience = 4 * time.Second

// CheckDisks reads the records of the disks below all mappings. It fences each mapping whose disk
// another node has opened since this node did (volume.Set.FenceByDisk). It works without an API
// server, because it reads only disks. Call it every few seconds.
func (d *Driver) CheckDisks(ctx context.Context) error {
	names, err := d.anySet.Engine.List(ctx, dmcrypt.NamePrefixAll)
	if err != nil {
		return err
	}
	done := make(chan error, len(names))
	started := 0
	for _, name := range names {
		if d.checkDisk(context.WithoutCancel(ctx), name, done) {
			started++
		}
	}
	ctx, cancel := context.WithTimeout(ctx, recordPatience)
	defer cancel()
	var errs []error
	for range started {
		select {
		case err := <-done:
			errs = append(errs, err)
		case <-ctx.Done():
			return errors.Join(append(errs,
				fmt.Errorf("read records: some disks did not answer for %v", recordPatience))...)
		}
	}
	return errors.Join(errs...)
}

// checkDisk starts a goroutine that reads the records below one mapping and sends its result to
// done. It returns false, and starts nothing, while an earlier read of the mapping hangs.
func (d *Driver) checkDisk(ctx context.Context, name string, done chan<- error) bool {
	id := d.strays.volume(name)
	if id == "" {
		id = name // The volume is not known yet; the mapping's name serves as the lock's name.
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.records[name] {
		return false
	}
	d.records[name] = true
	go func() {
		err := d.anySet.FenceByDisk(ctx, id, name)
		if errors.Is(err, volume.ErrInProgress) {
			err = nil
		}
		d.mu.Lock()
		delete(d.records, name)
		d.mu.Unlock()
		done <- err
	}()
	return true
}
