package leak

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Take returns the result since Start or the last Take and begins a new one, so that parts of a run
// are judged separately. The result contains every frame that a watched link carried before the
// call. A frame during the call is in this result or in the next.
func (o *Oracle) Take() (Result, error) {
	o.mu.Lock()
	rings := slices.Clone(o.rings)
	o.mu.Unlock()
	taken := make(chan error, len(rings))
	for _, r := range rings {
		select {
		case r.takes <- taken:
		case <-o.stop:
			return Result{}, errors.New("take from the leak oracle: it has ended")
		}
	}
	var errs []error
	for range rings {
		errs = append(errs, <-taken)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	result := o.seen
	o.seen = Result{Kinds: map[Kind]uint64{}}
	clear(o.kept)
	return result, errors.Join(errs...)
}

// Plus returns the sum of two results. It modifies neither.
func (r Result) Plus(other Result) Result {
	r.Frames += other.Frames
	r.Bytes += other.Bytes
	r.Plaintext += other.Plaintext
	r.Dropped += other.Dropped
	kinds := map[Kind]uint64{}
	for _, part := range []map[Kind]uint64{r.Kinds, other.Kinds} {
		for kind, n := range part {
			kinds[kind] += n
		}
	}
	r.Kinds = kinds
	r.Examples = slices.Concat(r.Examples, other.Examples)
	return r
}

// catchUp drains the ring until fn has had every frame that the kernel had counted at the call.
func (r *ring) catchUp(fn func(frame []byte)) error {
	if _, err := r.count(); err != nil {
		return err
	}
	want := r.packets - r.dropped
	deadline := time.Now().Add(lastFrames)
	for {
		r.drain(fn)
		if r.judged.Load() >= want {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("take from %s: %d of %d frames were handed over in %s", r.link,
				r.judged.Load(), want, lastFrames)
		}
		r.wait()
	}
}

// lost returns the number of frames dropped since its last call. If end is true, it also counts the
// frames that the kernel kept but did not deliver.
func (r *ring) lost(end bool) uint64 {
	n := r.dropped - r.told
	r.told = r.dropped
	if kept := r.packets - r.dropped; end && kept > r.judged.Load() {
		n += kept - r.judged.Load()
	}
	return n
}
