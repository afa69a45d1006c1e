package kube

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeveil/kubeveil/pkg/kube/wire"
)

// Group, version and kind of the custom resource; manifests/crd has its schema.
const (
	Group    = "kubeveil.io"
	Version  = "v1alpha1"
	Kind     = "VeilNode"
	Resource = "veilnodes"
)

var veilNodeVersion = schema.GroupVersion{Group: Group, Version: Version}

// object is every kind that is read here. What differs is kept raw, so that no
// content, however malformed, ends the stream of a watch; the kind's own parse
// function judges it. After parsing only the name and parsed are left.
type object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              json.RawMessage `json:"spec,omitempty"`
	Status            json.RawMessage `json:"status,omitempty"`
	// AddressType, Endpoints and Ports are fields of an EndpointSlice.
	AddressType string          `json:"addressType,omitempty"`
	Endpoints   json.RawMessage `json:"endpoints,omitempty"`
	Ports       json.RawMessage `json:"ports,omitempty"`

	// excess reports whether labels or ownerReferences in JSON were too large to be decoded.
	excess bool
	// node is the content of a Node that came as protobuf; Spec and Status are then empty.
	node *wire.Node
	// content is the part of an object that a wireKind reads.
	content any
	parsed  any
}

// objectList is a list of any of the kinds.
type objectList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []object `json:"items"`
}

// nodeReader keeps of a Node's metadata what parseNode and the reflector look at.
// Discovery of hardware features gives a Node more labels than other objects have.
var nodeReader = wire.Reader{AllLabels: true, MaxLabels: 1024,
	Annotations: []string{metav1.InitialEventsAnnotationKey}}

// Reset and Unmarshal let the client library's decoder of protobuf fill an object.
// Only Nodes are requested in that form.
func (o *object) Reset() { *o = object{} }

// Unmarshal reads a Node; see Reset.
func (o *object) Unmarshal(message []byte) error {
	n, err := nodeReader.Node(message)
	if err != nil {
		return err
	}
	o.setNode(n)
	return nil
}

func (o *object) setNode(n wire.Node) {
	*o = object{
		ObjectMeta: metav1.ObjectMeta{
			Name: n.Name, UID: types.UID(n.UID), ResourceVersion: n.ResourceVersion,
			CreationTimestamp: metav1.NewTime(n.Created), Labels: n.Labels,
			Annotations: n.Annotations,
		},
		node: &n,
	}
}

func (l *objectList) grow() readable {
	l.Items = append(l.Items, object{})
	return &l.Items[len(l.Items)-1]
}

func (l *objectList) shrink() { l.Items = l.Items[:len(l.Items)-1] }

func (l *objectList) setMeta(resourceVersion, next string) {
	l.ListMeta = metav1.ListMeta{ResourceVersion: resourceVersion, Continue: next}
}

// DeepCopyObject makes object a runtime.Object. What was parsed is never changed and so is shared.
func (o *object) DeepCopyObject() runtime.Object {
	out := *o
	o.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Spec, out.Status, out.Endpoints, out.Ports = clone(o.Spec), clone(o.Status),
		clone(o.Endpoints), clone(o.Ports)
	return &out
}

// DeepCopyObject makes objectList a runtime.Object.
func (l *objectList) DeepCopyObject() runtime.Object {
	out := *l
	l.ListMeta.DeepCopyInto(&out.ListMeta)
	out.Items = make([]object, len(l.Items))
	for i := range l.Items {
		out.Items[i] = *l.Items[i].DeepCopyObject().(*object)
	}
	return &out
}

func clone(raw json.RawMessage) json.RawMessage {
	return append(json.RawMessage(nil), raw...)
}

// ownerUID returns the UID of the Node that owns o, or "" when none does.
func (o *object) ownerUID() types.UID {
	for _, r := range o.OwnerReferences {
		if r.APIVersion == "v1" && r.Kind == "Node" {
			return r.UID
		}
	}
	return ""
}

// kind describes how to watch one kind of object.
type kind struct {
	what    string // for messages: the plural resource
	rule    string // for messages: the manifest that grants it
	path    []string
	version schema.GroupVersion
	name    string // only the object of this name; "" selects all
	labels  string // only objects that this selector matches; "" selects all
	accept  string // media types to accept; "" means JSON
	// newObject and newList make an object and a list of the kind. Nil means *object and
	// *objectList.
	newObject func() runtime.Object
	newList   func() growing
}

var (
	nodeKind = kind{
		what: "nodes", rule: "manifests/cni/clusterrole.yaml", path: []string{"/api/v1/nodes"},
		version: schema.GroupVersion{Version: "v1"}, accept: protobufOrJSON,
	}
	veilNodeKind = kind{
		what: "veilnodes." + Group, rule: "manifests/cni/clusterrole.yaml",
		path:    []string{"/apis", Group, Version, Resource},
		version: veilNodeVersion,
	}
	sliceKind = orJSON(wiredKind[sliceWire](kind{
		what:    "endpointslices.discovery.k8s.io of service default/kubernetes",
		rule:    "manifests/cni/role-apiserver.yaml",
		path:    []string{"/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"},
		version: schema.GroupVersion{Group: "discovery.k8s.io", Version: "v1"}, name: "kubernetes",
	}))
)

// protobufOrJSON prefers protobuf and accepts JSON from a server without protobuf.
const protobufOrJSON = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON

// scheme has the kinds, and what the machinery of a watch sends beside them.
var scheme = func() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for gv, names := range map[schema.GroupVersion][]string{nodeKind.version: {"Node"},
		veilNodeKind.version:      {Kind},
		clusterPolicyKind.version: {"ClusterNetworkPolicy"},
		definitionVersion:         {"CustomResourceDefinition"},
		adminVersion:              {"AdminNetworkPolicy", "BaselineAdminNetworkPolicy"},
		serviceCIDRKind.version:   {"ServiceCIDR"}} {
		metav1.AddToGroupVersion(scheme, gv)
		for _, name := range names {
			scheme.AddKnownTypeWithName(gv.WithKind(name), &object{})
			scheme.AddKnownTypeWithName(gv.WithKind(name+"List"), &objectList{})
		}
	}
	for _, k := range []struct {
		kind
		name string
	}{{podKind, "Pod"}, {namespaceKind, "Namespace"}, {networkPolicyKind, "NetworkPolicy"},
		{serviceKind, "Service"}, {endpointsKind, "EndpointSlice"}} {
		metav1.AddToGroupVersion(scheme, k.version)
		scheme.AddKnownTypeWithName(k.version.WithKind(k.name), k.newObject())
		scheme.AddKnownTypeWithName(k.version.WithKind(k.name+"List"), k.newList())
	}
	return scheme
}()

var codecs = serializer.NewCodecFactory(scheme)
