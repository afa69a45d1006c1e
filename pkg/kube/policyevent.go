package kube

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// EventSink receives the objects of PutEvent; it is a part of policy.Sink.
type EventSink interface {
	PutPod(p policy.Pod)
	PutPolicy(p policy.Policy)
}

// PutEvent passes the Pod or NetworkPolicy of an event of a watch on to sink, as RunPolicies does.
// The event is a frame of the stream in protobuf, added or modified, and node is this node's name.
// So a benchmark begins where the bytes of an event do. An object that RunPolicies does not pass on
// is an error.
func PutEvent(event []byte, node string, sink EventSink) error {
	var e metav1.WatchEvent
	if err := e.Unmarshal(event); err != nil {
		return fmt.Errorf("event of a watch: %w", err)
	}
	o, _, err := fromProtobuf.Decode(e.Object.Raw, nil, nil)
	if err != nil {
		return fmt.Errorf("object of an event: %w", err)
	}

	problem := "it is not passed on"
	switch o := o.(type) {
	case *wired[podWire]:
		p := parsePod(o.held(), node)
		if p.value != nil {
			sink.PutPod(*p.value)
			return nil
		}
		problem += ": " + p.problem
	case *wired[networkPolicyWire]:
		p := parseNetworkPolicy(o.held())
		if p.value != nil {
			sink.PutPolicy(*p.value)
			return nil
		}
		problem += ": " + p.problem
	}
	return fmt.Errorf("object of an event: %T: %s", o, problem)
}
