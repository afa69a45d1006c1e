package servicenode

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kubeveil/kubeveil/pkg/service"
)

// Want returns what the maps must hold for services that have a ClusterIP and one port, and for
// their slices. It decides by itself, without the planner.
func Want(services []*corev1.Service, all []*discoveryv1.EndpointSlice) Content {
	byService := map[string][]*discoveryv1.EndpointSlice{}
	for _, slice := range all {
		name := slice.Namespace + "/" + slice.Labels[discoveryv1.LabelServiceName]
		byService[name] = append(byService[name], slice)
	}

	c := Content{Backends: map[service.FrontendKey][]netip.AddrPort{},
		Draining: map[service.FrontendKey]int{}}
	for _, svc := range services {
		key := KeyOf(svc)
		ready, last := endpointsOf(byService[svc.Namespace+"/"+svc.Name])
		c.Draining[key] = 0
		if len(ready) == 0 {
			ready = last
		} else if key.Protocol == service.UDP {
			c.Draining[key] = len(last)
		}
		slices.SortFunc(ready, netip.AddrPort.Compare)
		c.Backends[key] = ready
	}
	return c
}

// KeyOf returns the frontend of a service that has a ClusterIP and one port.
func KeyOf(svc *corev1.Service) service.FrontendKey {
	port := svc.Spec.Ports[0]
	key := service.FrontendKey{Addr: netip.MustParseAddr(svc.Spec.ClusterIP).As16(),
		Protocol: service.TCP, Scope: service.Inside}
	binary.BigEndian.PutUint16(key.Port[:], uint16(port.Port))
	if port.Protocol == corev1.ProtocolUDP {
		key.Protocol = service.UDP
	}
	return key
}

// endpointsOf returns the endpoints of a service for new flows, and those that are used if there are
// no others. A condition that is not set is as the API defines.
func endpointsOf(all []*discoveryv1.EndpointSlice) (ready, last []netip.AddrPort) {
	ready = []netip.AddrPort{}
	for _, slice := range all {
		for _, ep := range slice.Endpoints {
			at := netip.AddrPortFrom(netip.MustParseAddr(ep.Addresses[0]),
				uint16(*slice.Ports[0].Port))
			is, serves := ep.Conditions.Ready, ep.Conditions.Serving
			switch {
			case is == nil || *is:
				ready = append(ready, at)
			case serves != nil && *serves:
				last = append(last, at)
			}
		}
	}
	return ready, last
}

// Differs returns how c differs from what it must be, or "".
func (c Content) Differs(want Content) string {
	for key, backends := range want.Backends {
		if got, has := c.Backends[key]; !has || !slices.Equal(got, backends) {
			return fmt.Sprintf("frontend %v has %d backends, want %d: %v", key.AddrPort(), len(got),
				len(backends), firstOther(got, backends))
		}
	}
	if len(c.Backends) != len(want.Backends) {
		return fmt.Sprintf("%d frontends, want %d", len(c.Backends), len(want.Backends))
	}

	for key, draining := range want.Draining {
		if got := c.Draining[key]; got != draining {
			return fmt.Sprintf("frontend %v has %d draining backends, want %d", key.AddrPort(), got,
				draining)
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
