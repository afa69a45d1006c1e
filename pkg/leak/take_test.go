package leak

import (
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

// The result of each part of a run has exactly the frames of that part, and its own examples.
func TestEachTakeHasItsOwnFrames(t *testing.T) {
	c := newCable(t)
	o := c.watch(t)

	tunnel := eth(etherIPv4, ip4(node1, node2, UDP, udp(51820, 51820, wg(4, 1024))))
	leak := eth(etherIPv4, ip4(pod1, pod2, TCP, tcp(1, 2, nil)))
	var whole Result
	for _, part := range []struct {
		name         string
		tunnel, leak int
	}{{"clean", 300, 0}, {"leaks more than there are examples", 10, 5}, {"nothing", 0, 0},
		{"leaks again", 1, 1}} {
		for range part.tunnel {
			c.transmit(t, tunnel)
		}
		for range part.leak {
			c.transmit(t, leak)
		}
		r, err := o.Take()
		errtest.Must(t, err)
		if r.Frames != uint64(part.tunnel+part.leak) || r.Plaintext != uint64(part.leak) ||
			r.Dropped != 0 || len(r.Examples) != min(part.leak, examplesPerKind) {
			t.Errorf("%s: %d frames, %d plaintext, %d dropped, %d examples", part.name, r.Frames,
				r.Plaintext, r.Dropped, len(r.Examples))
		}
		whole = whole.Plus(r)
	}

	if whole.Frames != 317 || whole.Plaintext != 6 || whole.Kinds[Tunnel] != 311 ||
		len(whole.Examples) != 4 {
		t.Errorf("all parts together: %+v", whole)
	}

	c.transmit(t, tunnel)
	if r, err := o.Stop(); err != nil || r.Frames != 1 || r.Plaintext != 0 {
		t.Errorf("the last part: %d frames, %d plaintext, %v", r.Frames, r.Plaintext, err)
	}
	if _, err := o.Take(); err == nil {
		t.Error("taking after Stop returned no error")
	}
}
