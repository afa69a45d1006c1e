package record

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/kube/sitenode"
)

// Bounds of what one site may state. The reader checks them while it reads.
const (
	// MaxNodes is the bound of SiteNodes of a site, which veild checks too.
	MaxNodes    = sitenode.MaxNodes
	MaxServices = 1000
	// MaxEndpoints is the bound of the endpoints of one service, in both families together, and
	// MaxAllEndpoints that of all services of a site.
	MaxEndpoints    = 2000
	MaxAllEndpoints = 20000
	MaxPorts        = 100
	MaxSlices       = 64
	maxRanges       = 64
	// MaxSpec is the bound of the spec of a SiteRecord, bytes.
	MaxSpec = object.MaxPartJSON
)

// NameHead is the name of the record with the ranges of the cluster.
const NameHead = "head"

const (
	nodePrefix    = "node."
	servicePrefix = "service."
)

// Spec is the spec of a SiteRecord. Exactly one field is set.
type Spec struct {
	Head    *Head           `json:"head,omitempty"`
	Node    json.RawMessage `json:"node,omitempty"` // the spec of a SiteNode
	Service *Service        `json:"service,omitempty"`
}

// Head states the ranges of a cluster. It exists as long as the cluster publishes for the site.
type Head struct {
	// Open reports whether the site is open in the configuration of the cluster.
	Open       bool           `json:"open"`
	PodRanges  []netip.Prefix `json:"podRanges"`
	NodeRanges []netip.Prefix `json:"nodeRanges"`
	// Digest changes with every other record. It is written after them. It also changes while some
	// of them are not written yet. Readers only compare it with the last one.
	Digest string `json:"digest,omitempty"`
}

// Service is an exported service.
type Service struct {
	// Headless reports whether the service has no cluster IP.
	Headless bool `json:"headless,omitempty"`
	// Created is the creation time of the export. It is zero if the exporting cluster does not
	// state it.
	Created time.Time `json:"created,omitzero"`
	// AffinitySeconds is the timeout of sessionAffinity ClientIP; 0 means None.
	AffinitySeconds int32 `json:"affinitySeconds,omitempty"`
	// InternalLocal reports whether internalTrafficPolicy is Local. Otherwise it is Cluster.
	InternalLocal bool `json:"internalLocal,omitempty"`
	// TrafficDistribution is the hint of that name, or "".
	TrafficDistribution string `json:"trafficDistribution,omitempty"`
	// Labels and Annotations are those that the export gives to its import. Decode leaves out those
	// that Copied leaves out. NotCopied is a sentence about the first of them, or "".
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	NotCopied   string            `json:"-"`
	Ports       []Port            `json:"ports,omitempty"`
	// V4 and V6 report whether the service has the family.
	V4     bool    `json:"v4,omitempty"`
	V6     bool    `json:"v6,omitempty"`
	Slices []Slice `json:"slices,omitempty"`
}

// Port is a port of a service, or of its endpoints.
type Port struct {
	Name string `json:"name,omitempty"`
	// Protocol is TCP, UDP or SCTP.
	Protocol    string `json:"protocol"`
	Port        int32  `json:"port"`
	AppProtocol string `json:"appProtocol,omitempty"`
}

// Slice holds endpoints with the same ports.
type Slice struct {
	Ports     []Port     `json:"ports,omitempty"`
	Endpoints []Endpoint `json:"endpoints"`
}

// Endpoint is a backend of a service.
type Endpoint struct {
	Address netip.Addr `json:"address"`
	// Node and Hostname are "" if they are unknown.
	Node        string `json:"node,omitempty"`
	Hostname    string `json:"hostname,omitempty"`
	Ready       bool   `json:"ready,omitempty"`
	Serving     bool   `json:"serving,omitempty"`
	Terminating bool   `json:"terminating,omitempty"`
}

// Endpoints returns the number of endpoints of s.
func (s *Service) Endpoints() (n int) {
	for _, slice := range s.Slices {
		n += len(slice.Endpoints)
	}
	return n
}

// First returns a copy of s with the first n endpoints, without the names of their nodes.
func (s *Service) First(n int) *Service {
	out := *s
	out.Slices = nil
	for _, slice := range s.Slices {
		slice.Endpoints = slices.Clone(slice.Endpoints[:min(n, len(slice.Endpoints))])
		for i := range slice.Endpoints {
			slice.Endpoints[i].Node = ""
		}
		if n -= len(slice.Endpoints); len(slice.Endpoints) > 0 {
			out.Slices = append(out.Slices, slice)
		}
	}
	return &out
}

// Key is the namespace and the name of a service.
type Key struct{ Namespace, Name string }

// String returns the namespace and the name with a slash between them.
func (k Key) String() string { return k.Namespace + "/" + k.Name }

// NameOfNode returns the name of the record of a node.
func NameOfNode(node string) string { return nodePrefix + node }

// NameOfService returns the name of the record of a service.
func NameOfService(k Key) string { return servicePrefix + k.Namespace + "." + k.Name }

// Record is a decoded SiteRecord. Exactly one of Head, Claim and Service is set.
type Record struct {
	Head *Head

	// Node is the name of the node of Claim.
	Node  string
	Claim *cluster.Claim
	Addrs []netip.Addr

	// Key is the key of Service.
	Key     Key
	Service *Service
}

// Kind returns the kind of a record with this name: NameHead, "node", "service", or "" for a name
// of another kind. It does not judge the rest of the name.
func Kind(name string) string {
	switch {
	case name == NameHead:
		return NameHead
	case strings.HasPrefix(name, nodePrefix):
		return "node"
	case strings.HasPrefix(name, servicePrefix):
		return "service"
	}
	return ""
}
