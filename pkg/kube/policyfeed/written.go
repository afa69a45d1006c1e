package policyfeed

import (
	"encoding/json"
	"fmt"

	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/kube/wire"
	"github.com/kubeveil/kubeveil/pkg/policy"
)

// Read parses the objects of w in the same way as Run parses objects of the API server. An object
// that cannot be parsed completely is an error, because a policy that was parsed only in part would
// deny more than its text does. The error names the object and the field.
func Read(w policy.Written) (all policy.Policies, err error) {
	for i, message := range w.Protobuf {
		o, kind, err := object.FromProtobuf(message)
		switch {
		case err != nil:
			return all, fmt.Errorf("NetworkPolicy number %d: %w", i+1, err)
		case kind != policy.KindNetworkPolicy:
			return all, fmt.Errorf("object number %d is a %s, not a NetworkPolicy", i+1, kind)
		}
		p := parseNetworkPolicy(o).Value
		if p.Invalid != "" {
			return all, fmt.Errorf("NetworkPolicy %s: %s", p.Name, p.Invalid)
		}
		all.Namespaced = append(all.Namespaced, *p)
	}

	all.Cluster, err = readCluster(w.JSON)
	for _, p := range all.Cluster {
		if p.Invalid != "" {
			return all, fmt.Errorf("ClusterNetworkPolicy %s: spec: %s", p.Name, p.Invalid)
		}
	}
	return all, err
}

// readCluster parses ClusterNetworkPolicies. Those that cannot be parsed completely are Invalid.
func readCluster(texts []json.RawMessage) (all []policy.ClusterPolicy, err error) {
	for i, text := range texts {
		o := new(object.Object)
		if err := json.Unmarshal(text, o); err != nil {
			return nil, fmt.Errorf("ClusterNetworkPolicy number %d: %w", i+1, err)
		}
		if version := object.ClusterPolicies.Version.String(); o.APIVersion != version ||
			o.Kind != policy.KindClusterNetworkPolicy {
			return nil, fmt.Errorf("object number %d is a %s of %s, not a ClusterNetworkPolicy of %s",
				i+1, o.Kind, o.APIVersion, version)
		}
		all = append(all, *parseClusterPolicy(o).Value)
	}
	return all, nil
}

// ReadHanded parses the objects of h in the same way as Run parses objects of the API server, for
// the node called node. Policies that cannot be parsed completely are Invalid, as in force.
func ReadHanded(h policy.Handed, node string) (all policy.Objects, err error) {
	all.NodeLabels = map[string]map[string]string{}
	for i, message := range h.Protobuf {
		o, kind, err := object.FromProtobuf(message)
		if err != nil {
			return all, fmt.Errorf("object number %d: %w", i+1, err)
		}
		switch kind {
		case object.Namespaces.Kind:
			if n := parseNamespace(o).Value; n != nil {
				all.Namespaces = append(all.Namespaces, *n)
			}
		case object.Pods.Kind:
			if p := parsePod(o, node).Value; p != nil {
				all.Pods = append(all.Pods, *p)
			}
		case object.NetworkPolicies.Kind:
			all.Policies.Namespaced = append(all.Policies.Namespaced, *parseNetworkPolicy(o).Value)
		case object.Nodes.Kind:
			all.NodeLabels[o.Name] = labelsOf(o)
		default:
			return all, fmt.Errorf("object number %d is a %s, which no policy needs", i+1, kind)
		}
	}
	all.Policies.Cluster, err = readCluster(h.JSON)
	return all, err
}

// labelsOf returns the labels of a Node, or nil if it has more than are kept.
func labelsOf(o *object.Object) map[string]string {
	w, ok := o.Content.(*wire.Node)
	switch {
	case !ok || w.LabelsExcess:
		return nil
	case w.Labels == nil:
		return map[string]string{}
	}
	return w.Labels
}
