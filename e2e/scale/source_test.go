package scale

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kubeveil/kubeveil/e2e/scale/apifeed"
	"github.com/kubeveil/kubeveil/e2e/scale/servicenode"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/service"
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

// wanted is what the maps must hold.
type wanted struct {
	backends map[service.FrontendKey][]netip.AddrPort
	// draining are the numbers of the backends that only keep flows.
	draining map[service.FrontendKey]int
}

func (s *source) wants() wanted {
	w := wanted{map[service.FrontendKey][]netip.AddrPort{}, map[service.FrontendKey]int{}}
	for i, svc := range s.services {
		port := svc.Spec.Ports[0]
		key := service.FrontendKey{Addr: netip.MustParseAddr(svc.Spec.ClusterIP).As16(),
			Protocol: service.TCP, Scope: service.Inside}
		binary.BigEndian.PutUint16(key.Port[:], uint16(port.Port))
		if port.Protocol == corev1.ProtocolUDP {
			key.Protocol = service.UDP
		}

		ready, last := []netip.AddrPort{}, []netip.AddrPort{}
		for _, slice := range s.slices[i] {
			for _, ep := range slice.Endpoints {
				at := netip.AddrPortFrom(netip.MustParseAddr(ep.Addresses[0]),
					uint16(*slice.Ports[0].Port))
				switch {
				case *ep.Conditions.Ready:
					ready = append(ready, at)
				case *ep.Conditions.Serving:
					last = append(last, at)
				}
			}
		}
		w.draining[key] = 0
		if len(ready) == 0 {
			ready = last
		} else if key.Protocol == service.UDP {
			w.draining[key] = len(last)
		}
		slices.SortFunc(ready, netip.AddrPort.Compare)
		w.backends[key] = ready
	}
	return w
}

// differs returns how the maps in a folder differ from w, or "".
func (w wanted) differs(dir string) string {
	c, err := servicenode.Read(dir)
	if err != nil {
		return err.Error()
	}
	for key, want := range w.backends {
		if got, has := c.Backends[key]; !has || !slices.Equal(got, want) {
			return fmt.Sprintf("frontend %v has %d backends, want %d: %v", key.AddrPort(), len(got),
				len(want), firstOther(got, want))
		}
	}
	if len(c.Backends) != len(w.backends) {
		return fmt.Sprintf("%d frontends, want %d", len(c.Backends), len(w.backends))
	}

	for key, want := range w.draining {
		if got := c.Draining[key]; got != want {
			return fmt.Sprintf("frontend %v has %d draining backends, want %d", key.AddrPort(), got,
				want)
		}
	}
	return ""
}

// firstOther returns the first backends that differ.
func firstOther(got, want []netip.AddrPort) string {
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || got[i] != want[i] {
			return fmt.Sprintf("from %d on: %v, want %v", i, got[i:min(i+1, len(got))],
				want[i:min(i+1, len(want))])
		}
	}
	return "they are equal"
}
