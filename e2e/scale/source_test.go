package scale

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kubeveil/kubeveil/e2e/scale/apifeed"
	"github.com/kubeveil/kubeveil/e2e/scale/servicenode"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// source holds the objects that the feed has.
type source struct {
	t        *testing.T
	feed     *apifeed.Feed
	shape    apifeed.Shape
	services map[int]*corev1.Service
	slices   map[int][]*discoveryv1.EndpointSlice // by service
	rng      *rand.Rand
	// next is the number of the next new endpoint.
	next int
}

func newSource(t *testing.T, f *apifeed.Feed, shape apifeed.Shape) *source {
	s := &source{t: t, feed: f, shape: shape, services: map[int]*corev1.Service{},
		slices: map[int][]*discoveryv1.EndpointSlice{}, next: shape.Endpoints,
		rng: rand.New(rand.NewPCG(1, 2))}
	for i := range shape.Services() {
		s.add(i)
	}
	return s
}

// add puts a service and its slices.
func (s *source) add(i int) {
	s.services[i], s.slices[i] = s.shape.Service(i), s.shape.Slices(i)
	errtest.Must(s.t, s.feed.Put(s.services[i]))
	for _, slice := range s.slices[i] {
		errtest.Must(s.t, s.feed.Put(slice))
	}
}

// remove deletes a service and its slices.
func (s *source) remove(i int) {
	errtest.Must(s.t, s.feed.Delete(s.services[i]))
	s.removeSlices(i)
	delete(s.services, i)
}

func (s *source) removeSlices(i int) {
	for _, slice := range s.slices[i] {
		errtest.Must(s.t, s.feed.Delete(slice))
	}
	delete(s.slices, i)
}

// first returns the first service with slices.
func (s *source) first() int { return slices.Min(slices.Collect(maps.Keys(s.slices))) }

// change changes n endpoints, and adds or removes a service with every fiftieth.
func (s *source) change(n int) {
	for j := range n {
		i := s.rng.IntN(s.shape.Services())
		switch {
		case s.services[i] == nil:
			s.add(i)
		case j%50 == 49:
			s.remove(i)
		case len(s.slices[i]) > 0:
			s.changeEndpoint(s.slices[i][s.rng.IntN(len(s.slices[i]))])
		}
	}
}

// changeEndpoint replaces an endpoint, or changes its conditions.
func (s *source) changeEndpoint(slice *discoveryv1.EndpointSlice) {
	ep := &slice.Endpoints[s.rng.IntN(len(slice.Endpoints))]
	yes, no := true, false
	switch s.rng.IntN(4) {
	case 0:
		ep.Conditions = discoveryv1.EndpointConditions{Ready: &no, Serving: &yes,
			Terminating: &yes}
	case 1:
		ep.Conditions = discoveryv1.EndpointConditions{Ready: &no, Serving: &no}
	default:
		s.next++
		ep.Addresses = []string{apifeed.Addr(s.next).String()}
		ep.Conditions = discoveryv1.EndpointConditions{Ready: &yes}
	}
	errtest.Must(s.t, s.feed.Put(slice))
}

// wants returns what the maps must hold.
func (s *source) wants() servicenode.Content {
	return servicenode.Want(slices.Collect(maps.Values(s.services)),
		slices.Concat(slices.Collect(maps.Values(s.slices))...))
}

// differs returns how the maps in a folder differ from what they must hold, or "".
func differs(dir string, want servicenode.Content) string {
	c, err := servicenode.Read(dir)
	if err != nil {
		return err.Error()
	}
	return c.Differs(want)
}
