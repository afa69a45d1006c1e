package leak

import (
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubeveil/kubeveil/internal/netns"
)

// Example is a frame that was a finding.
type Example struct {
	Link   string    `json:"link"`
	Time   time.Time `json:"time"`
	Kind   Kind      `json:"kind"`
	Detail string    `json:"detail"`
	// Length is the length of the frame. Bytes is the beginning of the frame.
	Length int    `json:"length"`
	Bytes  []byte `json:"bytes"`
}

// String returns a description of the frame and a hex dump of Bytes.
func (e Example) String() string {
	return fmt.Sprintf("%s on %s, %d bytes at %s: %s\n%s", e.Kind, e.Link, e.Length,
		e.Time.Format("15:04:05.000"), e.Detail, hex.Dump(e.Bytes))
}

const (
	// exampleLen is the number of bytes of a frame that an Example keeps.
	exampleLen = 256
	// examplesPerKind is the number of examples that are kept per kind and link.
	examplesPerKind = 3
)

// Result holds the numbers of judged frames and examples of findings.
type Result struct {
	// Frames is the number of judged frames over all links. A frame that crosses the bridge is
	// judged on each link.
	Frames uint64 `json:"frames"`
	// Bytes is the sum of the lengths of these frames.
	Bytes uint64 `json:"bytes"`
	// Plaintext is the number of leaks.
	Plaintext uint64 `json:"plaintext"`
	// Kinds counts the frames by kind.
	Kinds map[Kind]uint64 `json:"kinds"`
	// Dropped is the number of frames that were not judged. If it is not 0, the run proves nothing.
	Dropped uint64 `json:"dropped"`
	// Examples are the first findings of each kind on each link.
	Examples []Example `json:"examples,omitempty"`
}

// Findings returns the number of frames that were not on the allow-list.
func (r Result) Findings() uint64 {
	var n uint64
	for kind, count := range r.Kinds {
		if !kind.Allowed() {
			n += count
		}
	}
	return n
}

// Err returns nil if there was at least one frame, and every frame was judged and allowed. The
// error for findings has examples.
func (r Result) Err() error {
	switch {
	case r.Findings() > 0: // It counts although frames were not seen.
	case r.Dropped > 0:
		return fmt.Errorf("leak oracle: %d of %d frames were not seen, so nothing is proven",
			r.Dropped, r.Dropped+r.Frames)
	case r.Frames == 0:
		return errors.New("leak oracle: no frame was seen at all, so nothing is proven")
	default:
		return nil
	}
	err := fmt.Errorf("leak oracle: %d findings in %d frames, %d of them plaintext: %v",
		r.Findings(), r.Frames, r.Plaintext, r.Kinds)
	for i, e := range r.Examples {
		if i == 8 {
			break
		}
		err = fmt.Errorf("%w\n%s", err, e)
	}
	return err
}

// Oracle watches links of one network namespace. Its methods may be called from several goroutines.
type Oracle struct {
	netns string
	rules atomic.Pointer[Rules]
	stop  chan struct{}

	mu     sync.Mutex
	seen   Result
	rings  []*ring
	kept   map[string]int
	done   sync.WaitGroup
	ended  bool
	result Result
}

// Start returns an Oracle for the network namespace at netnsPath. An empty path means the caller's
// namespace, for which CAP_NET_RAW is enough. The oracle watches no link until Watch is called.
func Start(netnsPath string, rules Rules) (*Oracle, error) {
	o := &Oracle{netns: netnsPath, stop: make(chan struct{}), kept: map[string]int{},
		seen: Result{Kinds: map[Kind]uint64{}}}
	o.rules.Store(rules.clone())
	return o, o.inside(func() error { return nil })
}

// inside runs fn in the namespace.
func (o *Oracle) inside(fn func() error) error {
	if o.netns == "" {
		return fn()
	}
	return netns.Do(o.netns, fn)
}

// Watch watches a link in both directions until Stop. It is not an error if the link disappears
// later; the frames that it carried count.
func (o *Oracle) Watch(link string) error {
	var r *ring
	err := o.inside(func() error {
		var err error
		r, err = openRing(link, ringBlocks)
		return err
	})
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return errors.Join(fmt.Errorf("watch %s: the oracle has ended", link), r.Close())
	}
	o.rings = append(o.rings, r)
	o.done.Add(1)
	go o.read(r)
	return nil
}

// Update changes the rules for frames that are judged from now on.
func (o *Oracle) Update(change func(*Rules)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	r := o.rules.Load().clone()
	change(r)
	o.rules.Store(r)
}

// read judges the frames of a ring until Stop, then those that are left.
func (o *Oracle) read(r *ring) {
	defer o.done.Done()
	local := Result{Kinds: map[Kind]uint64{}}
	judge := func(frame []byte) {
		v := Classify(o.rules.Load(), frame)
		local.Frames++
		local.Bytes += uint64(len(frame))
		local.Kinds[v.Kind]++
		if v.Kind.Leak() {
			local.Plaintext++
		}
		if !v.Kind.Allowed() {
			o.keep(r.link, v, frame)
		}
	}

	for {
		r.drain(judge)
		o.add(&local)
		select {
		case taken := <-r.takes:
			err := r.catchUp(judge)
			o.add(&local)
			o.lose(r.lost(false))
			taken <- err
		case <-o.stop:
			o.finish(r, judge)
			o.add(&local)
			return
		default:
			r.wait()
		}
	}
}

// lastFrames bounds the wait for ring blocks that the kernel has not released yet.
const lastFrames = 5 * time.Second

// finish reads until every frame that the kernel counted is judged, at most for lastFrames. It
// counts the remaining frames as dropped.
func (o *Oracle) finish(r *ring, judge func([]byte)) {
	deadline := time.Now().Add(lastFrames)
	for {
		r.drain(judge)
		if complete, err := r.count(); err == nil && complete || time.Now().After(deadline) {
			break
		}
		r.wait()
	}
	o.lose(r.lost(true))
}

// lose adds a number of frames that were not judged to Dropped.
func (o *Oracle) lose(frames uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seen.Dropped += frames
}

// keep adds an example of a finding unless the link has examplesPerKind examples of the kind.
func (o *Oracle) keep(link string, v Verdict, frame []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	key := link + "/" + string(v.Kind)
	if o.kept[key]++; o.kept[key] > examplesPerKind {
		return
	}
	o.seen.Examples = append(o.seen.Examples,
		Example{Link: link, Time: time.Now(), Kind: v.Kind, Detail: v.Detail,
			Length: len(frame), Bytes: append([]byte(nil), frame[:min(len(frame), exampleLen)]...)})
}

// add adds the counts of a reader to the result and clears local.
func (o *Oracle) add(local *Result) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seen.Frames += local.Frames
	o.seen.Bytes += local.Bytes
	o.seen.Plaintext += local.Plaintext
	for kind, n := range local.Kinds {
		o.seen.Kinds[kind] += n
	}
	*local = Result{Kinds: local.Kinds}
	clear(local.Kinds)
}

// Seen returns what was judged since Start or the last Take. Only Take and Stop set Dropped.
func (o *Oracle) Seen() Result {
	o.mu.Lock()
	defer o.mu.Unlock()
	r := o.seen
	r.Kinds = map[Kind]uint64{}
	for kind, n := range o.seen.Kinds {
		r.Kinds[kind] = n
	}
	r.Examples = append([]Example(nil), o.seen.Examples...)
	return r
}

// Stop judges the frames that are still in the rings, closes the rings, and returns the result
// since Start or the last Take. A second call returns the same result.
func (o *Oracle) Stop() (Result, error) {
	o.mu.Lock()
	if o.ended {
		defer o.mu.Unlock()
		return o.result, nil
	}
	o.ended = true
	close(o.stop)
	o.mu.Unlock()
	o.done.Wait()
	var errs []error
	for _, r := range o.rings {
		errs = append(errs, r.Close())
	}
	result := o.Seen()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.result = result
	return result, errors.Join(errs...)
}
