package policyfeed

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/policy"
)

// EventSink receives the objects of PutEvent. It is a part of policy.Sink.
type EventSink interface {
	PutPod(p policy.Pod)
	PutPolicy(p policy.Policy)
}

// PutEvent passes the Pod or NetworkPolicy of an event of a watch on to sink, as Run does. event is
// a frame of the stream in protobuf with type added or modified. node is this node's name. PutEvent
// is for benchmarks, which so include the decoding of the event. It returns an error for an object
// that Run would not pass on.
func PutEvent(event []byte, node string, sink EventSink) error {
	var e metav1.WatchEvent
	if err := e.Unmarshal(event); err != nil {
		return fmt.Errorf("event of a watch: %w", err)
	}
	o, kind, err := object.FromProtobuf(e.Object.Raw)
	if err != nil {
		return fmt.Errorf("object of an event: %w", err)
	}

	problem := "it is ignored"
	switch kind {
	case object.Pods.Kind:
		p := parsePod(o, node)
		if p.Value != nil {
			sink.PutPod(*p.Value)
			return nil
		}
		problem += ": " + p.Problem
	case object.NetworkPolicies.Kind:
		p := parseNetworkPolicy(o)
		if p.Value != nil {
			sink.PutPolicy(*p.Value)
			return nil
		}
		problem += ": " + p.Problem
	}
	return fmt.Errorf("object of an event: %s: %s", kind, problem)
}
