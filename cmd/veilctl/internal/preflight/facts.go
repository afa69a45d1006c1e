package preflight

import (
	"net/netip"
	"time"
)

// Facts holds the facts about a cluster. A fact that could not be read is missing, and its name is
// in Unread.
type Facts struct {
	Server Server
	// Config is the future text of veild.yaml in the ConfigMap kubeveil; ConfigFrom names its
	// origin.
	Config, ConfigFrom string
	// Denied holds the rights of Needed that the user lacks. Ungiven holds the rights of Granted
	// that the user lacks. Escalate reports whether the user may grant rights that they lack.
	Denied, Ungiven []Right
	Escalate        bool
	// Kubeadm is the ClusterConfiguration of the ConfigMap kubeadm-config; nil when there is none.
	Kubeadm []byte
	// Proxy is the kubeconfig of the ConfigMap kube-proxy; nil when there is none.
	Proxy []byte
	// PodSecurity is the label pod-security.kubernetes.io/enforce of kube-system, usually empty.
	PodSecurity string
	// Controller holds the visible flags of kube-controller-manager.
	Controller Controller
	// StaticServers are the pods of kube-apiserver. It is empty if the control plane is hidden.
	StaticServers []StaticServer
	// Certificates describes the certificates of the API servers. They are read only if the
	// configuration has services.apiFrontends.
	Certificates []Certificate
	Nodes        []NodeFacts
	// APIServers are the endpoints of the service default/kubernetes, and ServiceAddrs the
	// addresses of the service.
	APIServers, ServiceAddrs []netip.Addr
	// DaemonSets holds the names of all DaemonSets as namespace/name. Groups holds the API groups
	// of custom resources.
	DaemonSets, Groups []string
	// PodAddrs holds the addresses of at most some hundred pods by namespace/name. Pods on the
	// host's network are left out.
	PodAddrs map[string]netip.Addr
	// Objects are the objects of the manifests that exist. Daemons describes the DaemonSets among
	// them.
	Objects []Object
	Daemons []Daemon
	// Cleaning reports whether the DaemonSet of manifests/uninstall is there.
	Cleaning bool
	// Definition is the CustomResourceDefinition of VeilNodes; nil if it does not exist.
	Definition *Definition
	// Unread holds the reasons why facts could not be read, by the name of the fact.
	Unread map[string]string
}

// Server is the API server.
type Server struct {
	// Address comes from the kubeconfig, and Version from the server, such as v1.36.3. Err is the
	// reason why the server does not answer.
	Address, Version, Err string
	// Policies reports whether admissionregistration.k8s.io/v1 has ValidatingAdmissionPolicies.
	Policies bool
}

// Right is a permission of RBAC. Namespace is empty for cluster-scoped resources. An empty Name
// means all names.
type Right struct{ Verb, Group, Resource, Namespace, Name string }

// Controller holds the visible flags of kube-controller-manager.
type Controller struct {
	// Seen reports whether a pod of it exists. It is false if the control plane is hidden.
	Seen bool
	// Allocates is the value of --allocate-node-cidrs, and ClusterCIDR of --cluster-cidr.
	Allocates   bool
	ClusterCIDR string
}

// StaticServer is a pod of kube-apiserver. GoAwayChance is its flag --goaway-chance; "" if it is
// not set.
type StaticServer struct{ Pod, GoAwayChance string }

// Certificate holds the addresses that the certificate of an API server names, or the reason why it
// cannot be verified.
type Certificate struct {
	Server netip.AddrPort
	Names  []netip.Addr
	Err    string
}

// NodeFacts holds the facts from a Node object and its VeilNode.
type NodeFacts struct {
	Name         string
	Created      time.Time
	ControlPlane bool
	Addresses    []netip.Addr
	PodCIDRs     []netip.Prefix
	// Ready reports whether the condition Ready is true.
	Ready bool
	// OS is the label kubernetes.io/os, by which the DaemonSets select the node.
	OS                             string
	Arch, Kernel, Runtime, Kubelet string
	// Annotations holds the keys of the annotations, without values.
	Annotations []string
	// MTU is the underlay's MTU in bytes from the node's VeilNode; 0 if the VeilNode has none.
	MTU int
}

// Object is an object of the manifests.
type Object struct{ Group, Resource, Namespace, Name string }

// Daemon is one of the DaemonSets.
type Daemon struct {
	Name, Image    string
	Desired, Ready int
}

// Definition is the state of the CustomResourceDefinition.
type Definition struct {
	// Versions are the served versions.
	Versions    []string
	Established bool
	// Leaving reports whether the definition is being deleted.
	Leaving bool
}

const (
	rbac      = "rbac.authorization.k8s.io"
	admission = "admissionregistration.k8s.io"
	system    = "kube-system"
	version   = "v1alpha1"
)

// Manifests are the objects of manifests/, in Kustomize's order of application.
var Manifests = []Object{
	{"apiextensions.k8s.io", "customresourcedefinitions", "", "veilnodes.kubeveil.io"},
	{"apiextensions.k8s.io", "customresourcedefinitions", "", "sitenodes.kubeveil.io"},
	{admission, "validatingadmissionpolicies", "", "kubeveil-veilnode-own"},
	{admission, "validatingadmissionpolicybindings", "", "kubeveil-veilnode-own"},
	{"", "serviceaccounts", system, "veild"},
	{rbac, "clusterroles", "", "kubeveil-veild"},
	{rbac, "clusterrolebindings", "", "kubeveil-veild"},
	{rbac, "roles", "default", "kubeveil-veild-apiserver"},
	{rbac, "rolebindings", "default", "kubeveil-veild-apiserver"},
	{"", "configmaps", system, "kubeveil"},
	{"apps", "daemonsets", system, "veil-wg"},
	{"apps", "daemonsets", system, "veild"},
}

// Config is veild's configuration in the manifests.
const Config = `kubeadmConfig: /etc/kubeveil/kubeadm.yaml
source:
  kind: kubernetes
  kubeconfig: /etc/kubeveil/kubeconfig
`

// Needed returns the rights that `kubectl apply -f kubeveil.yaml` needs.
func Needed() []Right {
	var out []Right
	seen := map[Right]bool{}
	for _, o := range Manifests {
		for _, verb := range []string{"get", "create", "patch"} {
			r := Right{Verb: verb, Group: o.Group, Resource: o.Resource, Namespace: o.Namespace}
			if !seen[r] {
				seen[r] = true
				out = append(out, r)
			}
		}
	}
	return out
}

// Granted returns the rights that the manifests, without components, grant to veild. The API server
// lets an account grant only rights that it has.
func Granted() []Right {
	var out []Right
	for _, g := range []struct {
		right Right
		verbs []string
	}{
		{Right{Resource: "nodes"}, []string{"get", "list", "watch"}},
		{Right{Group: "networking.k8s.io", Resource: "servicecidrs"}, []string{"list", "watch"}},
		{Right{Group: "kubeveil.io", Resource: "veilnodes"},
			[]string{"get", "list", "watch", "create", "update", "delete"}},
		{Right{Group: "kubeveil.io", Resource: "sitenodes"}, []string{"list", "watch"}},
		{Right{Group: "discovery.k8s.io", Resource: "endpointslices", Namespace: "default",
			Name: "kubernetes"}, []string{"get", "list", "watch"}},
	} {
		for _, verb := range g.verbs {
			r := g.right
			r.Verb = verb
			out = append(out, r)
		}
	}
	return out
}

// Escalating returns the rights that let an account grant rights that it does not have.
func Escalating() []Right {
	return []Right{
		{Verb: "escalate", Group: rbac, Resource: "clusterroles"},
		{Verb: "bind", Group: rbac, Resource: "clusterroles"},
		{Verb: "escalate", Group: rbac, Resource: "roles", Namespace: "default"},
		{Verb: "bind", Group: rbac, Resource: "roles", Namespace: "default"},
	}
}
