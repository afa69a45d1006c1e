package policyfeed

import (
	"encoding/json"
	"fmt"

	"github.com/kubeveil/kubeveil/pkg/kube/object"
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

	for i, text := range w.JSON {
		o := new(object.Object)
		if err := json.Unmarshal(text, o); err != nil {
			return all, fmt.Errorf("ClusterNetworkPolicy number %d: %w", i+1, err)
		}
		if version := object.ClusterPolicies.Version.String(); o.APIVersion != version ||
			o.Kind != policy.KindClusterNetworkPolicy {
			return all, fmt.Errorf("object number %d is a %s of %s, not a ClusterNetworkPolicy of %s",
				i+1, o.Kind, o.APIVersion, version)
		}
		p := parseClusterPolicy(o).Value
		if p.Invalid != "" {
			return all, fmt.Errorf("ClusterNetworkPolicy %s: spec: %s", p.Name, p.Invalid)
		}
		all.Cluster = append(all.Cluster, *p)
	}
	return all, nil
}
