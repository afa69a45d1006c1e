package object

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"

	"github.com/kubeveil/kubeveil/pkg/kube/wire"
)

// Group, version and kind of Kubeveil's custom resource; manifests/crd has its schema.
const (
	VeilNodeGroup    = "kubeveil.io"
	VeilNodeVersion  = "v1alpha1"
	VeilNodeKind     = "VeilNode"
	VeilNodeResource = "veilnodes"
)

// Kind of the custom resource for nodes of other clusters. It has the group and version of
// VeilNode.
const (
	SiteNodeKind     = "SiteNode"
	SiteNodeResource = "sitenodes"
)

// Kinds of the custom resources that links of clusters need. They have the group and version of
// VeilNode.
const (
	SiteRecordKind     = "SiteRecord"
	SiteRecordResource = "siterecords"
	SiteLinkKind       = "SiteLink"
	SiteLinkResource   = "sitelinks"
)

// Manifests that grant rights.
const (
	siteRights = "manifests/components/sites/clusterrole.yaml"
	// exportRights lets veild read what is exported.
	exportRights  = "manifests/components/sites/rights.yaml"
	nodeRights    = "manifests/cni/clusterrole.yaml"
	serviceRights = "manifests/components/services/rights.yaml"
	// PolicyRights is the manifest that lets veild read what policies need.
	PolicyRights = "manifests/components/policy/rights.yaml"
)

// ServiceNameLabel is the label of an EndpointSlice that names its service (discovery.k8s.io/v1).
const ServiceNameLabel = "kubernetes.io/service-name"

// Kind describes how to read one kind of object.
type Kind struct {
	Kind    string // such as Node
	What    string // the plural resource, for messages
	Rule    string // the manifest that grants access to it, for messages
	Path    string
	Version schema.GroupVersion
	Name    string // only the object of this name; "" selects all
	Labels  string // only objects that this selector matches; "" selects all
	Accept  string // media types to accept; "" means JSON

	newObject func() runtime.Object
	newList   func() List
}

var (
	core       = schema.GroupVersion{Version: "v1"}
	discovery  = schema.GroupVersion{Group: "discovery.k8s.io", Version: "v1"}
	networking = schema.GroupVersion{Group: "networking.k8s.io", Version: "v1"}
	policy     = schema.GroupVersion{Group: "policy.networking.k8s.io", Version: "v1alpha2"}
	// admin is the API version of the kinds that preceded ClusterNetworkPolicy.
	admin      = schema.GroupVersion{Group: policy.Group, Version: "v1alpha1"}
	extensions = schema.GroupVersion{Group: "apiextensions.k8s.io", Version: "v1"}
	own        = schema.GroupVersion{Group: VeilNodeGroup, Version: VeilNodeVersion}
	// multicluster is the API version of exports and imports of services (KEP-1645).
	multicluster = schema.GroupVersion{Group: "multicluster.x-k8s.io", Version: "v1beta1"}
)

// Kinds for the cluster's state.
var (
	Nodes     = eitherKind[wire.Node]("Node", core, "nodes", nodeRights)
	VeilNodes = jsonKind(VeilNodeKind, own, VeilNodeResource, nodeRights)
	SiteNodes = jsonKind(SiteNodeKind, own, SiteNodeResource, nodeRights)
	// ServiceCIDRs are the service ranges. Not every API server has this kind.
	ServiceCIDRs = jsonKind("ServiceCIDR", networking, "servicecidrs", nodeRights)
	// APIServerSlice and APIServerService select only the API servers' own service.
	APIServerSlice = EndpointSlices.ofAPIServers(
		"endpointslices.discovery.k8s.io of service default/kubernetes",
		"manifests/cni/role-apiserver.yaml")
	APIServerService = Services.ofAPIServers("services default/kubernetes",
		"manifests/components/api-path/rights.yaml")
)

// Kinds for services. The label selector leaves out services of another proxy, whose label
// kube-proxy also honours. It also leaves out headless services, whose slices have a label by the
// controllers.
var (
	Services = eitherKind[wire.Service]("Service", core, "services", serviceRights).selecting(
		"!service.kubernetes.io/service-proxy-name,!service.kubernetes.io/headless")
	EndpointSlices = eitherKind[wire.EndpointSlice]("EndpointSlice", discovery, "endpointslices",
		serviceRights).selecting(Services.Labels)
)

// ServiceSlices are the EndpointSlices of all services, headless ones included.
var ServiceSlices = eitherKind[wire.EndpointSlice]("EndpointSlice", discovery, "endpointslices",
	exportRights).selecting(ServiceNameLabel)

// Kinds for policies.
var (
	Pods            = protobufKind[wire.Pod]("Pod", core, "pods", PolicyRights)
	Namespaces      = protobufKind[wire.Meta]("Namespace", core, "namespaces", PolicyRights)
	NetworkPolicies = protobufKind[wire.NetworkPolicy]("NetworkPolicy", networking,
		"networkpolicies", PolicyRights)
	// ClusterPolicies is a kind that not every cluster has; see Definition.
	ClusterPolicies = jsonKind("ClusterNetworkPolicy", policy, "clusternetworkpolicies",
		PolicyRights)
	// IgnoredPolicies are kinds of policies that administrators may have written and that Kubeveil
	// does not enforce.
	IgnoredPolicies = []Kind{
		jsonKind("AdminNetworkPolicy", admin, "adminnetworkpolicies", PolicyRights),
		jsonKind("BaselineAdminNetworkPolicy", admin, "baselineadminnetworkpolicies", PolicyRights),
	}
	// Events are only created, not read.
	Events = jsonKind("Event", core, "events", PolicyRights)
)

// Kinds for links with other clusters. Services and slices are read whole, in JSON.
var (
	ServiceExports = jsonKind("ServiceExport", multicluster, "serviceexports", siteRights)
	ServiceImports = jsonKind("ServiceImport", multicluster, "serviceimports", siteRights)
	SiteRecords    = jsonKind(SiteRecordKind, own, SiteRecordResource, siteRights)
	SiteLinks      = jsonKind(SiteLinkKind, own, SiteLinkResource, siteRights)
	AllServices    = newKind[wire.Service]("Service", core, "services", siteRights)
	AllSlices      = newKind[wire.EndpointSlice]("EndpointSlice", discovery, "endpointslices",
		siteRights)
	AllNamespaces = newKind[wire.Meta]("Namespace", core, "namespaces", siteRights)
)

// newKind returns a kind whose Content in protobuf is a *C.
func newKind[C any](kind string, version schema.GroupVersion, resource, rule string) Kind {
	k := Kind{Kind: kind, What: resource, Rule: rule, Version: version,
		Path:      "/api/" + version.Version + "/" + resource,
		newObject: func() runtime.Object { return &typed[C]{} },
		newList:   func() List { return &typedList[C]{} }}
	if version.Group != "" {
		k.What += "." + version.Group
		k.Path = "/apis/" + version.String() + "/" + resource
	}
	return k
}

// protobufKind returns a kind that is read only in protobuf.
func protobufKind[C any](kind string, version schema.GroupVersion, resource, rule string) Kind {
	k := newKind[C](kind, version, resource, rule)
	k.Accept = runtime.ContentTypeProtobuf
	return k
}

// eitherKind returns a kind that is read in protobuf, or in JSON from a server without protobuf. In
// JSON, the fields Spec, Status and so on hold raw content.
func eitherKind[C any](kind string, version schema.GroupVersion, resource, rule string) Kind {
	k := newKind[C](kind, version, resource, rule)
	k.Accept = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	return k
}

// jsonKind returns a kind that exists only in JSON.
func jsonKind(kind string, version schema.GroupVersion, resource, rule string) Kind {
	return newKind[struct{}](kind, version, resource, rule)
}

// selecting restricts a kind to the objects that a selector of labels matches.
func (k Kind) selecting(labels string) Kind {
	k.Labels = labels
	return k
}

// ofAPIServers restricts a kind to the object of the API servers' own service.
func (k Kind) ofAPIServers(what, rule string) Kind {
	k = k.In("default")
	k.What, k.Rule, k.Labels, k.Name = what, rule, "", "kubernetes"
	return k
}

// Definition returns a kind that selects the CustomResourceDefinition of k, whose name is k.What.
// That object exists if k is installed.
func (k Kind) Definition() Kind {
	d := jsonKind("CustomResourceDefinition", extensions, "customresourcedefinitions", k.Rule)
	d.Name, d.What = k.What, "customresourcedefinition "+k.What
	return d
}

// Definitions returns the manifests with the definition of k, or "" if k is not a custom resource
// that Kubeveil installs.
func (k Kind) Definitions() string {
	switch {
	case k.Rule == siteRights && (k.Version == own || k.Version == multicluster):
		return "manifests/components/sites/crd"
	case k.Version == own:
		return "manifests/crd"
	}
	return ""
}

// In restricts a kind to the objects of a namespace.
func (k Kind) In(namespace string) Kind {
	last := strings.LastIndex(k.Path, "/")
	k.Path = k.Path[:last] + "/namespaces/" + namespace + k.Path[last:]
	return k
}

// Select returns o restricted to the objects that k selects.
func (k Kind) Select(o metav1.ListOptions) *metav1.ListOptions {
	o.LabelSelector = k.Labels
	if k.Name != "" {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", k.Name).String()
	}
	return &o
}

// New returns an empty object of the kind.
func (k Kind) New() runtime.Object { return k.newObject() }

// scheme holds all kinds that are read, and the other types that a watch can send.
var scheme = func() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, k := range append([]Kind{Nodes, VeilNodes, SiteNodes, ServiceCIDRs, Services,
		EndpointSlices, Pods, Namespaces, NetworkPolicies, ClusterPolicies, ServiceExports,
		ServiceImports, SiteRecords, SiteLinks, ClusterPolicies.Definition()}, IgnoredPolicies...) {
		metav1.AddToGroupVersion(scheme, k.Version)
		scheme.AddKnownTypeWithName(k.Version.WithKind(k.Kind), k.newObject())
		scheme.AddKnownTypeWithName(k.Version.WithKind(k.Kind+"List"), k.newList())
	}
	return scheme
}()

// codecs decode what Serializers does not read in place.
var codecs = serializer.NewCodecFactory(scheme)

// fromProtobuf decodes an object in protobuf with its envelope.
var fromProtobuf = protobuf.NewSerializer(scheme, scheme)

// FromProtobuf returns the object in an envelope of protobuf, and its kind.
func FromProtobuf(message []byte) (o *Object, kind string, err error) {
	v, gvk, err := fromProtobuf.Decode(message, nil, nil)
	if err != nil {
		return nil, "", err
	}
	o, ok := Held(v)
	if !ok {
		return nil, "", fmt.Errorf("%T is not an object of a kind that is read", v)
	}
	return o, gvk.Kind, nil
}
