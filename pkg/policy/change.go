package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// MaxWritten bounds the policies and names of a Written.
const MaxWritten = 256

// Kinds of policies, as the API writes them.
const (
	KindNetworkPolicy        = "NetworkPolicy"
	KindClusterNetworkPolicy = "ClusterNetworkPolicy"
)

// Written holds policies to try, in the encodings of the API server, and names of existing policies
// that count as deleted. Fields are added but never renamed, because another version of the program
// may have written the JSON.
type Written struct {
	// Protobuf holds NetworkPolicies, each in the API's envelope of protobuf.
	Protobuf [][]byte `json:"protobuf,omitempty"`
	// JSON holds ClusterNetworkPolicies.
	JSON []json.RawMessage `json:"json,omitempty"`
	// Delete names existing policies that count as deleted.
	Delete []Ref `json:"delete,omitempty"`
	// Handed holds the cluster's objects, for nodes without policies. Nil means that none were
	// handed over.
	Handed *Handed `json:"handed,omitempty"`
}

// Check returns an error if w is empty or has too many policies.
func (w Written) Check() error {
	switch n := len(w.Protobuf) + len(w.JSON) + len(w.Delete); {
	case n == 0 && w.Handed == nil:
		return errors.New("there is nothing to try: write a policy, or name one to delete")
	case n > MaxWritten:
		return fmt.Errorf("%d policies are too many: try at most %d at once", n, MaxWritten)
	}
	return nil
}

// Ref names a policy. A ClusterNetworkPolicy has no namespace.
type Ref struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// ParseRef reads KIND/NAMESPACE/NAME, or KIND/NAME for a ClusterNetworkPolicy. The kind may be
// written in small letters.
func ParseRef(text string) (Ref, error) {
	parts := strings.Split(text, "/")
	for _, part := range parts[1:] {
		if part == "" {
			parts = nil
		}
	}
	switch {
	case len(parts) == 3 && strings.EqualFold(parts[0], KindNetworkPolicy):
		return Ref{KindNetworkPolicy, parts[1], parts[2]}, nil
	case len(parts) == 2 && strings.EqualFold(parts[0], KindClusterNetworkPolicy):
		return Ref{KindClusterNetworkPolicy, "", parts[1]}, nil
	}
	return Ref{}, fmt.Errorf("%q names no policy: write NetworkPolicy/NAMESPACE/NAME or "+
		"ClusterNetworkPolicy/NAME", text)
}

// String returns what ParseRef reads.
func (r Ref) String() string {
	if r.Namespace == "" {
		return r.Kind + "/" + r.Name
	}
	return r.Kind + "/" + r.Namespace + "/" + r.Name
}

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
