package pod

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"
)

// TestUnsetBesideOthersChanges: the kernel's list of a set may miss an element while another
// process changes the set. The known addresses of a link are removed all the same.
func TestUnsetBesideOthersChanges(t *testing.T) {
	n := newNode(t)
	var others []element
	for i := range 600 {
		others = append(others, element{fmt.Sprintf("vpother%d", i),
			netip.AddrFrom4([4]byte{198, 18, byte(2 + i/250), byte(i % 250)})})
	}
	n.must(func() error { return changeElements(others, nil) })

	stop := make(chan struct{})
	var wg sync.WaitGroup
	var otherErr error
	wg.Go(func() {
		otherErr = n.NS.Do(func() error {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return nil
				default:
				}
				some := others[i*37%50:][:550]
				if err := changeElements(nil, some); err != nil {
					return err
				}
				if err := changeElements(some, nil); err != nil {
					return err
				}
			}
		})
	})

	known := []netip.Addr{pod4, pod6}
	missed := 0
	for range 200 {
		n.must(func() error { return changeElements(elementsOf("vpmine", known), nil) })
		n.must(func() error {
			return withSets(func(s nftSets) error { return s.unsetAddrs("vpmine", known) })
		})
		n.must(func() error {
			if err := changeElements(nil, elementsOf("vpmine", known[:1])); err == nil {
				missed++
			}
			return nil
		})
	}
	close(stop)
	wg.Wait()
	if missed > 0 || otherErr != nil {
		t.Errorf("%d of 200 times the element was left; the other process: %v", missed, otherErr)
	}
}
