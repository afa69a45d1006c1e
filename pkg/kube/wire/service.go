package wire

import (
	"net/netip"
	"sync"
	"unique"
)

// Service holds the fields that are read of a Service (k8s.io.api.core.v1.Service).
type Service struct {
	Meta
	Type, ClusterIP string
	ClusterIPs      []string
	ExternalIPs     []string
	// SourceRanges are spec.loadBalancerSourceRanges.
	SourceRanges                                 []string
	ExternalTrafficPolicy, InternalTrafficPolicy string
	SessionAffinity                              string
	// AffinitySeconds is spec.sessionAffinityConfig.clientIP.timeoutSeconds.
	AffinitySeconds     int32
	HealthCheckNodePort int32
	Ports               []ServicePort
	// Ingress is status.loadBalancer.ingress.
	Ingress []LoadBalancerIngress
	// Excess reports whether the lists exceed MaxService. The object is then incomplete and must
	// not be used.
	Excess bool
}

// ServicePort is a port of a Service.
type ServicePort struct {
	Name, Protocol string
	Port, NodePort int32
}

// LoadBalancerIngress is an address of a load balancer. IPMode is nil if the object has none.
type LoadBalancerIngress struct {
	IP     string
	IPMode *string
}

// Service reads a Service without its envelope.
func (r Reader) Service(message []byte) (s Service, err error) {
	in := serviceReading{&s, budget{MaxService}}
	err = each(message, func(f field) error {
		switch f.number {
		case 1:
			return r.meta(f, &s.Meta)
		case 2:
			return in.bounded(f, in.spec)
		case 3:
			return in.bounded(f, in.status)
		}
		return nil
	})
	return s, err
}

// serviceReading is the state of reading one Service.
type serviceReading struct {
	service *Service
	budget
}

// bounded reads spec or status until the bound is exceeded.
func (s *serviceReading) bounded(part field, visit func(f field) error) (err error) {
	if s.service.Excess {
		return nil
	}
	s.service.Excess, err = excess(part.within(visit))
	return err
}

func (s *serviceReading) spec(f field) (err error) {
	to := s.service

	switch f.number {
	case 1:
		return s.port(f)
	case 3:
		to.ClusterIP, err = s.word(f)
	case 4:
		to.Type, err = s.word(f)
	case 5:
		return s.appendTo(f, &to.ExternalIPs)
	case 7:
		to.SessionAffinity, err = s.word(f)
	case 9:
		return s.appendTo(f, &to.SourceRanges)
	case 11:
		to.ExternalTrafficPolicy, err = s.word(f)
	case 12:
		return f.setInt32(&to.HealthCheckNodePort)
	case 14:
		return s.affinity(f)
	case 18:
		return s.appendTo(f, &to.ClusterIPs)
	case 22:
		to.InternalTrafficPolicy, err = s.word(f)
	}
	return err
}

// appendTo counts and reads an entry of a list of strings.
func (b *budget) appendTo(f field, to *[]string) error {
	text, err := b.text(f)
	if err == nil {
		*to = append(*to, text)
	}
	return err
}

func (s *serviceReading) port(port field) error {
	if err := s.take(1); err != nil {
		return err
	}
	var p ServicePort
	err := port.within(func(f field) (err error) {
		switch f.number {
		case 1:
			p.Name, err = s.word(f)
		case 2:
			p.Protocol, err = s.word(f)
		case 3:
			err = f.setInt32(&p.Port)
		case 5:
			err = f.setInt32(&p.NodePort)
		}
		return err
	})
	s.service.Ports = append(s.service.Ports, p)
	return err
}

func (s *serviceReading) affinity(config field) error {
	return config.only(1, func(f field) error {
		return f.only(1, func(f field) error {
			return f.setInt32(&s.service.AffinitySeconds)
		})
	})
}

func (s *serviceReading) status(f field) error {
	if f.number != 1 {
		return nil
	}
	return f.only(1, func(f field) error {
		if err := s.take(1); err != nil {
			return err
		}

		var i LoadBalancerIngress
		err := f.within(func(f field) (err error) {
			switch f.number {
			case 1:
				i.IP, err = s.word(f)
			case 3:
				mode, err := s.word(f)
				i.IPMode = &mode
				return err
			}
			return err
		})
		s.service.Ingress = append(s.service.Ingress, i)
		return err
	})
}

// EndpointSlice holds the fields that are read of an EndpointSlice
// (k8s.io.api.discovery.v1.EndpointSlice).
type EndpointSlice struct {
	Meta
	AddressType string
	Endpoints   []Endpoint
	Ports       []EndpointPort
	// Malformed is the text of the last address of an endpoint that is not an address without a
	// zone. Empty means that there is none.
	Malformed string
	// Excess reports whether endpoints, hints and ports exceed MaxEndpoints. The object is then
	// incomplete and must not be used.
	Excess bool
}

// Endpoint is an endpoint. A condition is nil if the object does not have it.
type Endpoint struct {
	// Addr is the first address; the API gives further addresses no meaning. It is not valid if
	// there is none, or if it is malformed.
	Addr netip.Addr
	// Node is the name of its node. The zero value means that there is none.
	Node                        unique.Handle[string]
	Ready, Serving, Terminating *bool
	// ForZones and ForNodes are the names of zones and nodes in the hints.
	ForZones, ForNodes []string
}

// Append appends an endpoint with its first address as text. Empty means that it has none.
func (s *EndpointSlice) Append(e Endpoint, text []byte) {
	addr, ok := parseAddr(text)
	if !ok && len(text) > 0 {
		s.Malformed = string(text)
	}
	e.Addr = addr
	s.Endpoints = append(s.Endpoints, e)
}

// EndpointPort is a port of an EndpointSlice. Port is nil if the object has none.
type EndpointPort struct {
	Name, Protocol string
	Port           *int32
}

// EndpointSlice reads an EndpointSlice without its envelope.
func (r Reader) EndpointSlice(message []byte) (s EndpointSlice, err error) {
	b := sliceReading{budget{MaxEndpoints}, r.Names}
	if n := count(message, 2); n > 0 {
		s.Endpoints = spareEndpoints(min(n, MaxEndpoints))
	}
	err = each(message, func(f field) (err error) {
		switch f.number {
		case 1:
			return r.meta(f, &s.Meta)
		case 2:
			if !s.Excess {
				s.Excess, err = excess(b.endpoint(f, &s))
			}
		case 3:
			if !s.Excess {
				s.Excess, err = excess(b.endpointPort(f, &s.Ports))
			}
		case 4:
			var text []byte
			text, err = f.message()
			s.AddressType = r.Names.of(text)
		}
		return err
	})
	return s, err
}

// spare holds lists of endpoints that Release returned: *[]Endpoint without elements. Slices of a
// large cluster are read one after the other, and each would need 12 kB of new memory.
var spare sync.Pool

// maxSpare is the largest capacity of a list in spare. The API allows 1,000 endpoints.
const maxSpare = 1000

// spareEndpoints returns an empty list with room for n endpoints.
func spareEndpoints(n int) []Endpoint {
	if all, ok := spare.Get().(*[]Endpoint); ok && cap(*all) >= n {
		return *all
	}
	return make([]Endpoint, 0, n)
}

// Release lets another object use the memory of the list of endpoints. The caller must not use the
// list any more.
func (s *EndpointSlice) Release() {
	all := s.Endpoints
	s.Endpoints = nil
	if cap(all) == 0 || cap(all) > maxSpare {
		return
	}
	clear(all)
	all = all[:0]
	spare.Put(&all)
}

// sliceReading is the state of reading one EndpointSlice.
type sliceReading struct {
	budget
	names *Names
}

// name is word for a text that occurs in many objects.
func (b *sliceReading) name(f field) (string, error) {
	text, err := b.wordBytes(f)
	return b.names.of(text), err
}

func (b *sliceReading) endpoint(endpoint field, to *EndpointSlice) error {
	if err := b.take(1); err != nil {
		return err
	}

	var e Endpoint
	var address []byte
	first := true
	err := endpoint.within(func(f field) (err error) {
		switch f.number {
		case 1:
			if first {
				address, err = b.wordBytes(f)
				first = false
			}
		case 2:
			err = f.within(e.condition)
		case 6:
			var name []byte
			name, err = b.wordBytes(f)
			e.Node = b.names.handle(name)
		case 8:
			err = f.within(func(f field) error { return b.hint(f, &e) })
		}
		return err
	})
	to.Append(e, address)
	return err
}

// hint parses a ForZone or ForNode message of an endpoint's hints and appends its name to e.
func (b *sliceReading) hint(hint field, e *Endpoint) error {
	to := &e.ForZones
	switch hint.number {
	case 1:
	case 2:
		to = &e.ForNodes
	default:
		return nil
	}

	if err := b.take(1); err != nil {
		return err
	}
	name := ""
	err := hint.only(1, func(f field) (err error) {
		name, err = b.name(f)
		return err
	})
	*to = append(*to, name)
	return err
}

func (e *Endpoint) condition(f field) error {
	v, err := f.integer()
	is := &no
	if v != 0 {
		is = &yes
	}
	switch f.number {
	case 1:
		e.Ready = is
	case 2:
		e.Serving = is
	case 3:
		e.Terminating = is
	default:
		return nil
	}
	return err
}

// yes and no are the values of all conditions. They never change.
var yes, no = true, false

func (b *sliceReading) endpointPort(port field, to *[]EndpointPort) error {
	if err := b.take(1); err != nil {
		return err
	}
	var p EndpointPort
	err := port.within(func(f field) (err error) {
		switch f.number {
		case 1:
			p.Name, err = b.name(f)
		case 2:
			p.Protocol, err = b.name(f)
		case 3:
			p.Port = new(int32)
			err = f.setInt32(p.Port)
		}
		return err
	})
	*to = append(*to, p)
	return err
}

// setInt32 stores the value of an int32.
func (f field) setInt32(to *int32) error {
	v, err := f.integer()
	*to = int32(v)
	return err
}
