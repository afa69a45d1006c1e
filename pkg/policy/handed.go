package policy

import "encoding/json"

// Handed holds the objects of a cluster that a veild without policies does not keep, in the
// encodings of the API server. Fields are added but never renamed, because another version of the
// program may have written the JSON.
type Handed struct {
	// Protobuf holds Namespaces, Pods, Nodes and NetworkPolicies, each in the API's envelope of
	// protobuf.
	Protobuf [][]byte `json:"protobuf,omitempty"`
	// JSON holds ClusterNetworkPolicies.
	JSON []json.RawMessage `json:"json,omitempty"`
}

// Objects are the objects of a cluster that a plan depends on.
type Objects struct {
	Namespaces []Namespace
	Pods       []Pod
	// NodeLabels holds the labels of Nodes by name. Nil labels mean that a Node has more than are
	// kept.
	NodeLabels map[string]map[string]string
	Policies   Policies
}
