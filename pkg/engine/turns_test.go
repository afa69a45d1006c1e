package engine

import (
	"sync"
	"testing"
)

// Batches are delivered in the order in which they were received, each once, and never two at the
// same time, regardless of the threads.
func TestBatchesAreDeliveredInTheirOrder(t *testing.T) {
	const threads, batches = 4, 20000
	tn := newTurns()
	var received uint64
	var delivered []uint64

	var wg sync.WaitGroup
	for i := range threads {
		wg.Go(func() {
			tn.lead()
			for received < batches {
				received++ // By the leader only.
				batch := tn.draw()
				shared := (batch+uint64(i))%3 != 0
				if shared {
					tn.follow()
				}
				tn.await(batch)
				delivered = append(delivered, batch)
				tn.done()
				if shared {
					tn.lead()
				}
			}
			tn.follow()
		})
	}
	wg.Wait()

	for i, b := range delivered {
		if b != uint64(i) {
			t.Fatalf("batch %d was delivered as number %d", b, i)
		}
	}
	if len(delivered) != batches {
		t.Errorf("%d batches were delivered of %d", len(delivered), batches)
	}
}
