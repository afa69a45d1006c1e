package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/kube/sitenode"
)

// Names of Kubernetes: a DNS label and a DNS subdomain (RFC 1123), and a label with a prefix.
var (
	label     = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	subdomain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	prefixed  = regexp.MustCompile(`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?` +
		`[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`)
)

// maxNode bounds the name of a node. The names of its SiteNode and its record are longer, and an
// object's name has at most 253 bytes.
const maxNode = 180

// maxPrefixed bounds a label with a prefix, bytes.
const maxPrefixed = 253

// maxDigest bounds Head.Digest, bytes.
const maxDigest = 64

// maxAffinity is the longest timeout of sessionAffinity that Kubernetes allows, seconds.
const maxAffinity = 86400

// ErrTooLarge means that a spec has more than MaxSpec bytes.
var ErrTooLarge = fmt.Errorf("more than %d bytes", MaxSpec)

// Decode parses the spec of the SiteRecord with this name.
func Decode(name string, raw []byte) (r Record, err error) {
	if len(raw) > MaxSpec {
		return r, fmt.Errorf("spec has %d bytes: %w", len(raw), ErrTooLarge)
	}
	var s Spec
	if err := json.Unmarshal(raw, &s); err != nil {
		return r, fmt.Errorf("spec: %w", err)
	}

	switch kind := Kind(name); {
	case kind == NameHead && s.Head != nil:
		r.Head, err = s.Head, s.Head.check()
	case kind == "node" && s.Node != nil:
		r.Node = strings.TrimPrefix(name, nodePrefix)
		if !subdomain.MatchString(r.Node) || len(r.Node) > maxNode {
			return r, fmt.Errorf("%q is not a name of a node of at most %d bytes", r.Node, maxNode)
		}
		r.Claim, r.Addrs, err = sitenode.Decode(s.Node)
	case kind == "service" && s.Service != nil:
		r.Key.Namespace, r.Key.Name, _ = strings.Cut(strings.TrimPrefix(name, servicePrefix), ".")
		if !label.MatchString(r.Key.Namespace) || !label.MatchString(r.Key.Name) {
			return r, fmt.Errorf("%q does not name a namespace and a service", name)
		}
		r.Service, err = s.Service, s.Service.check()
		r.Service.copied()
	default:
		err = errors.New("the spec does not have the content that the name stands for")
	}
	return r, err
}

func (h *Head) check() error {
	if len(h.PodRanges) > maxRanges || len(h.NodeRanges) > maxRanges {
		return fmt.Errorf("head: more than %d ranges", maxRanges)
	}
	if len(h.Digest) > maxDigest {
		return fmt.Errorf("head: its digest has more than %d bytes", maxDigest)
	}
	for _, p := range slices.Concat(h.PodRanges, h.NodeRanges) {
		if !p.IsValid() || p != p.Masked() {
			return fmt.Errorf("head: %s is not a range", p)
		}
	}
	return nil
}

func (s *Service) check() error {
	switch n := s.Endpoints(); {
	case n > MaxEndpoints:
		return fmt.Errorf("service: %d endpoints, more than %d", n, MaxEndpoints)
	case len(s.Slices) > MaxSlices:
		return fmt.Errorf("service: %d slices, more than %d", len(s.Slices), MaxSlices)
	case s.AffinitySeconds < 0 || s.AffinitySeconds > maxAffinity:
		return fmt.Errorf("service: affinitySeconds is %d", s.AffinitySeconds)
	case !isPrefixed(s.TrafficDistribution):
		return errors.New("service: trafficDistribution is malformed")
	case len(s.Ports) == 0 && !s.Headless:
		return errors.New("service: it has no port")
	}
	if err := checkPorts(s.Ports); err != nil {
		return fmt.Errorf("service: %w", err)
	}
	type numbered struct {
		protocol string
		port     int32
	}
	seen := map[numbered]bool{}
	for _, p := range s.Ports { // The API server refuses such a Service.
		n := numbered{p.Protocol, p.Port}
		if seen[n] {
			return fmt.Errorf("service: two ports have %s %d", p.Protocol, p.Port)
		}
		seen[n] = true
	}

	for _, slice := range s.Slices {
		if err := checkPorts(slice.Ports); err != nil {
			return fmt.Errorf("endpoints: %w", err)
		}
		for _, e := range slice.Endpoints {
			if err := e.check(); err != nil {
				return fmt.Errorf("endpoints: %w", err)
			}
		}
	}
	return nil
}

// copied leaves out labels and annotations that are not copied.
func (s *Service) copied() {
	var left []string
	s.Labels, s.Annotations, left = Copied(s.Labels, s.Annotations)
	if len(left) > 0 {
		s.NotCopied = left[0]
	}
}

// isPrefixed reports whether s is a label with an optional prefix, or "".
func isPrefixed(s string) bool {
	return s == "" || len(s) <= maxPrefixed && prefixed.MatchString(s)
}

// checkPorts checks ports by the rules for a Service's ports.
func checkPorts(ports []Port) error {
	if len(ports) > MaxPorts {
		return fmt.Errorf("%d ports, more than %d", len(ports), MaxPorts)
	}
	seen := map[string]bool{}
	for _, p := range ports {
		switch {
		case p.Name != "" && !label.MatchString(p.Name), p.Name == "" && len(ports) > 1:
			return fmt.Errorf("%q is not the name of a port", p.Name)
		case seen[p.Name]:
			return fmt.Errorf("two ports are named %q", p.Name)
		case p.Port < 1 || p.Port > 65535:
			return fmt.Errorf("%d is not a port", p.Port)
		case !slices.Contains([]string{"TCP", "UDP", "SCTP"}, p.Protocol):
			return fmt.Errorf("%q is not a protocol", p.Protocol)
		case !isPrefixed(p.AppProtocol):
			return errors.New("appProtocol is malformed")
		}
		seen[p.Name] = true
	}
	return nil
}

func (e Endpoint) check() error {
	switch a := e.Address; {
	case !a.IsValid() || a.Zone() != "" || a.Is4In6():
		return fmt.Errorf("%q is not an address", a)
	case e.Hostname != "" && !label.MatchString(e.Hostname):
		return fmt.Errorf("%q is not a host name", e.Hostname)
	case e.Node != "" && (len(e.Node) > maxNode || !subdomain.MatchString(e.Node)):
		return fmt.Errorf("%q is not the name of a node", e.Node)
	}
	return nil
}

// Encode returns the spec of the SiteRecord with this name, or an error if Decode would refuse it.
func Encode(name string, s Spec) ([]byte, error) {
	raw, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode record %s: %w", name, err)
	}
	if _, err := Decode(name, raw); err != nil {
		return nil, fmt.Errorf("encode record %s: %w", name, err)
	}
	return raw, nil
}

// Overlapping returns the first pair of ranges, one of each list, that overlap.
func Overlapping(a, b []netip.Prefix) (first, second netip.Prefix, found bool) {
	for _, first := range a {
		for _, second := range b {
			if first.Overlaps(second) {
				return first, second, true
			}
		}
	}
	return netip.Prefix{}, netip.Prefix{}, false
}
