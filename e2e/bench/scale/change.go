package scale

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kubeveil/kubeveil/e2e/scale/apifeed"
	"github.com/kubeveil/kubeveil/pkg/bench"
)

// changePath is the path of the feed that changes an endpoint with each request.
const changePath = "/change"

// changer changes an endpoint with each request: the first of a service becomes not ready, and with
// the next request ready again, and so on with the next service. So an even number of changes leaves
// the list as it was.
type changer struct {
	feed  *apifeed.Feed
	shape apifeed.Shape

	mu   sync.Mutex
	next int
}

func (c *changer) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	slice := c.shape.First(c.next / 2 % c.shape.Services())
	ready := c.next%2 == 1
	slice.Endpoints[0].Conditions = discoveryv1.EndpointConditions{Ready: &ready, Serving: &ready}
	c.next++
	if err := c.feed.Put(slice); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// oneChanges is the even number of single changes of a measurement, and changeLimit bounds the wait
// for each.
const oneChanges, changeLimit = 300, 10 * time.Second

// changes measures single changes, each after the one before: from the decoded slice to the written
// frontend.
type changes struct {
	mu      sync.Mutex
	decoded time.Time // of the change that is not written yet
	took    chan time.Duration
}

// decode records that a slice is decoded.
func (c *changes) decode() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.decoded = time.Now()
}

// wrote passes on the duration of a change whose frontend was written at a time.
func (c *changes) wrote(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case c.took <- at.Sub(c.decoded):
	default:
	}
}

// measure sets the median and the 99th percentile of single changes in f.
func (c *changes) measure(ctx context.Context, config string, f *figures) error {
	client, url, err := clientOf(config)
	if err != nil {
		return err
	}
	select {
	case <-c.took: // the last write of the list
	default:
	}

	var all []time.Duration
	for range oneChanges {
		if err := request(ctx, client, url+changePath); err != nil {
			return err
		}
		select {
		case took := <-c.took:
			all = append(all, took)
		case <-time.After(changeLimit):
			return fmt.Errorf("change %d is not written after %v", len(all), changeLimit)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	slices.Sort(all)
	f.Change, f.ChangeMost = bench.Millis(all[len(all)/2]), bench.Millis(all[len(all)*99/100])
	return nil
}

func request(ctx context.Context, client *http.Client, url string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, answer.Status)
	}
	return nil
}
