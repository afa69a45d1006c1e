package main

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

// TestTwoHundredPodsByEightWorkers adds and deletes 200 pods concurrently. No ADD may fail, no two
// pods may have the same address, CHECK must succeed for all pods, and nothing may be left at the
// end.
func TestTwoHundredPodsByEightWorkers(t *testing.T) {
	const pods, workers, bound = 200, 8, 4 * time.Minute
	n := newNode(t)
	c := conf("1.0.0", nil)

	attachments := make([]attachment, pods)
	for i := range attachments {
		attachments[i], _ = newPod(t, fmt.Sprintf("c%d", i))
	}

	results := make([][]byte, pods)
	each := func(f func(i int) error) {
		t.Helper()
		start := time.Now()
		errtest.Must(t, parallel(pods, workers, f))
		if took := time.Since(start); took > bound {
			t.Errorf("%d calls took %s", pods, took)
		}
	}

	each(func(i int) (err error) {
		results[i], err = n.try("ADD", attachments[i], c)
		return err
	})
	if left := n.leftovers(); len(left) != pods*(1+2+4+1+2) {
		t.Errorf("%d links, elements, routes, records and reservations, want %d", len(left),
			pods*10)
	}

	each(func(i int) error {
		_, err := n.try("CHECK", attachments[i],
			conf("1.0.0", object{"prevResult": raw(results[i])}))
		return err
	})
	each(func(i int) error {
		_, err := n.try("DEL", attachments[i], c)
		return err
	})
	n.wantNothing()
}

// parallel calls f with each number below count, in this number of workers, and joins the errors.
func parallel(count, workers int, f func(i int) error) error {
	next := make(chan int)
	errs := make([]error, count)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := range next {
				errs[i] = f(i)
			}
		})
	}
	for i := range count {
		next <- i
	}
	close(next)
	wg.Wait()
	return errors.Join(errs...)
}
