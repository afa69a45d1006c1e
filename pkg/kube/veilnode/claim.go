package veilnode

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// Group, version and kind of the custom resource.
const (
	Group    = object.VeilNodeGroup
	Version  = object.VeilNodeVersion
	Kind     = object.VeilNodeKind
	Resource = object.VeilNodeResource
)

// Bounds of a VeilNode's spec. The schema in manifests/crd has the same bounds. They are checked
// again here, because veild does not trust the API server to enforce them.
const (
	maxSpec     = 64 << 10 // bytes
	maxKeys     = 4
	maxFamilies = 2
	maxMTU      = 65535
	maxEvidence = 32 << 10 // bytes
	maxFeatures = 32
	maxFeature  = 63 // bytes
)

// spec is the JSON form of a VeilNode's spec.
type spec struct {
	Keys        []keySpec `json:"keys"`
	Endpoints   []string  `json:"endpoints,omitempty"`
	PodPrefixes []string  `json:"podPrefixes,omitempty"`
	MTU         int       `json:"mtu,omitempty"`
	// Evidence is reserved for attestation. Its length is bounded, and its content is ignored.
	Evidence string `json:"evidence,omitempty"`
	// Features is cluster.Claim.Features.
	Features []cluster.Feature `json:"features,omitempty"`
}

type keySpec struct {
	Epoch     uint32 `json:"epoch"`
	PublicKey string `json:"publicKey"`
}

// Decode parses the spec of a VeilNode. The keys of the claim are sorted by epoch. It ignores
// unknown fields, because a newer node may have them. If a known field is malformed, it returns an
// error and no claim.
func Decode(raw []byte) (*cluster.Claim, error) {
	if len(raw) > maxSpec {
		return nil, fmt.Errorf("spec has %d bytes, more than %d", len(raw), maxSpec)
	}
	var s spec
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, fmt.Errorf("spec: %w", err)
	}
	switch {
	case len(s.Keys) == 0 || len(s.Keys) > maxKeys:
		return nil, fmt.Errorf("spec.keys: %d keys, want 1 to %d", len(s.Keys), maxKeys)
	case s.MTU < 0 || s.MTU > maxMTU:
		return nil, fmt.Errorf("spec.mtu: %d, want 0 to %d", s.MTU, maxMTU)
	case len(s.Evidence) > maxEvidence:
		return nil, fmt.Errorf("spec.evidence: %d bytes, more than %d", len(s.Evidence),
			maxEvidence)
	}
	c := &cluster.Claim{MTU: s.MTU, Features: decodeFeatures(s.Features)}
	if err := errors.Join(decodeKeys(c, s.Keys), decodeEndpoints(c, s.Endpoints),
		decodePrefixes(c, s.PodPrefixes)); err != nil {
		return nil, err
	}
	return c, nil
}

func decodeKeys(c *cluster.Claim, keys []keySpec) error {
	for i, k := range keys {
		var pub wgkey.Public
		if err := pub.UnmarshalText([]byte(k.PublicKey)); err != nil {
			return fmt.Errorf("spec.keys[%d]: %w", i, err)
		}
		if pub == (wgkey.Public{}) {
			return fmt.Errorf("spec.keys[%d]: a key of all zeroes is not valid", i)
		}
		for _, other := range c.Keys {
			if other.Epoch == k.Epoch || other.Public == pub {
				return fmt.Errorf("spec.keys[%d]: epoch %d or its key appears twice", i, k.Epoch)
			}
		}
		c.Keys = append(c.Keys, cluster.Key{Epoch: k.Epoch, Public: pub})
	}
	slices.SortFunc(c.Keys, func(a, b cluster.Key) int { return cmp.Compare(a.Epoch, b.Epoch) })
	return nil
}

func decodeEndpoints(c *cluster.Claim, endpoints []string) error {
	if len(endpoints) > maxFamilies {
		return fmt.Errorf("spec.endpoints: %d, want at most one of each family", len(endpoints))
	}
	for i, text := range endpoints {
		ap, err := netip.ParseAddrPort(text)
		a := ap.Addr()
		switch {
		case err != nil:
			return fmt.Errorf("spec.endpoints[%d]: %w", i, err)
		case ap.Port() == 0 || a.Zone() != "" || a.Is4In6() || !a.IsGlobalUnicast():
			return fmt.Errorf("spec.endpoints[%d]: %q is not a unicast address without zone "+
				"and a port", i, text)
		}
		for _, other := range c.Endpoints {
			if other.Addr().Is4() == a.Is4() {
				return fmt.Errorf("spec.endpoints[%d]: %q is the second of its family", i, text)
			}
		}
		c.Endpoints = append(c.Endpoints, ap)
	}
	return nil
}

func decodePrefixes(c *cluster.Claim, prefixes []string) error {
	if len(prefixes) > maxFamilies {
		return fmt.Errorf("spec.podPrefixes: %d, want at most %d", len(prefixes), maxFamilies)
	}
	for i, text := range prefixes {
		p, err := object.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("spec.podPrefixes[%d]: %w", i, err)
		}
		c.PodPrefixes = append(c.PodPrefixes, p)
	}
	return nil
}

// decodeFeatures returns the well-formed features, sorted, up to maxFeatures. It ignores the
// others, so that a malformed feature does not invalidate the claim.
func decodeFeatures(all []cluster.Feature) (features []cluster.Feature) {
	for _, f := range all {
		if len(f) == 0 || len(f) > maxFeature || strings.Trim(string(f), featureLetters) != "" {
			continue
		}
		features = append(features, f)
	}
	slices.Sort(features)
	features = slices.Compact(features)
	return features[:min(len(features), maxFeatures)]
}

// featureLetters are the letters of a feature's name, as in the schema of manifests/crd.
const featureLetters = "abcdefghijklmnopqrstuvwxyz0123456789-"

// Encode returns the spec of a VeilNode for a claim. It is the inverse of Decode, and returns an
// error if Decode would.
func Encode(c cluster.Claim) ([]byte, error) {
	s := spec{MTU: c.MTU, Features: c.Features}
	for _, k := range c.Keys {
		s.Keys = append(s.Keys, keySpec{Epoch: k.Epoch, PublicKey: k.Public.String()})
	}
	for _, e := range c.Endpoints {
		s.Endpoints = append(s.Endpoints, e.String())
	}
	for _, p := range c.PodPrefixes {
		s.PodPrefixes = append(s.PodPrefixes, p.String())
	}
	raw, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode claim: %w", err)
	}
	if _, err := Decode(raw); err != nil {
		return nil, fmt.Errorf("encode claim: %w", err)
	}
	return raw, nil
}

// Same reports whether a and b have the same content. Nil equals only nil.
func Same(a, b *cluster.Claim) bool {
	return SameButFeatures(a, b) && (a == nil || slices.Equal(a.Features, b.Features))
}

// SameButFeatures is Same without the features. The API server drops these if the schema of
// VeilNode is older than this version.
func SameButFeatures(a, b *cluster.Claim) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.MTU == b.MTU && slices.Equal(a.Keys, b.Keys) &&
		slices.Equal(a.Endpoints, b.Endpoints) && slices.Equal(a.PodPrefixes, b.PodPrefixes)
}
