package scale

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kubeveil/kubeveil/e2e/scale/apifeed"
	"github.com/kubeveil/kubeveil/e2e/scale/servicenode"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/service"
)

// changePath is the path of the feed that changes an endpoint with each request.
const changePath = "/change"

// changer changes the first endpoint of the service whose number is in the request: it becomes not
// ready, or ready again.
type changer struct {
	feed  *apifeed.Feed
	shape apifeed.Shape
}

func (c *changer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var i int
	var ready bool
	_, err := fmt.Sscan(r.URL.Query().Get("service"), &i, &ready)
	if err == nil {
		slice := c.shape.First(i)
		slice.Endpoints[0].Conditions = discoveryv1.EndpointConditions{Ready: &ready,
			Serving: &ready}
		err = c.feed.Put(slice)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// changing returns the number of services with single changes. A storm has the others.
func changing(shape apifeed.Shape) int { return max(1, shape.Services()/2) }

// changeEvery is the time between two single changes, and changeLimit bounds the wait for each.
const changeEvery, changeLimit = 5 * time.Millisecond, 10 * time.Second

// changesOf returns the even number of single changes of a measurement. No gate judges small shapes.
func changesOf(shape apifeed.Shape) int {
	if shape.Endpoints < 100_000 {
		return 20
	}
	return 300
}

// changes measures single changes, each after the one before: from the decoded slice to the written
// frontend.
type changes struct {
	took chan time.Duration

	mu sync.Mutex
	// service is the service of the change that is not written yet, and frontend its frontend.
	service  service.Name
	frontend service.FrontendKey
	decoded  time.Time // zero before
}

// begin waits for a change of a service.
func (c *changes) begin(svc *corev1.Service) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.service = service.Name{Namespace: svc.Namespace, Name: svc.Name}
	c.frontend, c.decoded = servicenode.KeyOf(svc), time.Time{}
}

// decode records that a slice is decoded.
func (c *changes) decode(s service.Slice) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.Service == c.service {
		c.decoded = time.Now()
	}
}

// wrote passes on the duration of a change whose frontend was written.
func (c *changes) wrote(w servicenode.Write) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.decoded.IsZero() && slices.Contains(w.Keys, c.frontend) {
		c.took <- w.At.Sub(c.decoded)
		c.service, c.decoded = service.Name{}, time.Time{}
	}
}

// measure returns the median and the 99th percentile of single changes, in milliseconds. They leave
// the list as it was.
func (c *changes) measure(ctx context.Context, config string,
	shape apifeed.Shape) (median, most float64, err error) {
	client, url, err := clientOf(config)
	if err != nil {
		return 0, 0, err
	}
	tick := time.NewTicker(changeEvery)
	defer tick.Stop()
	var all []float64
	for j := range changesOf(shape) {
		<-tick.C
		i := j / 2 % changing(shape)
		c.begin(shape.Service(i))
		err := request(ctx, client, fmt.Sprintf("%s%s?service=%d+%t", url, changePath, i, j%2 == 1))
		if err != nil {
			return 0, 0, err
		}
		select {
		case took := <-c.took:
			all = append(all, bench.Millis(took))
		case <-time.After(changeLimit):
			return 0, 0, fmt.Errorf("change %d is not written after %v", j, changeLimit)
		case <-ctx.Done():
			return 0, 0, context.Cause(ctx)
		}
	}
	return bench.Quantile(all, 0.5), bench.Quantile(all, 0.99), nil
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
