// Package connectivity walks the kinds of flow of a cluster on two of its nodes and reports for
// each what happened to its payload.
//
// It promises to report what was observed, not what should be. Every flow carries a canary of its
// own, and meanwhile the leak oracle reads both nodes' uplinks in host-network pods. A payload that
// came back and was not seen, while tunnel packets were, is *encrypted*; one that was seen is
// *in clear*, which is *outside the cluster* or *host to host* only where that is the documented
// exception; one that did not come back is *refused*. A flow between two ends on one node *stays on
// the node*.
//
// The walk begins with a flow between the hosts themselves, which is a listed exception
// (docs/security.md): if its canary is not seen, the readers are blind. The walk then ends with
// that error and proves nothing.
//
// It makes pods and services in a namespace of its own and removes it, after errors and after the
// end of the context too. It disturbs nothing. It does not see a payload in clear on a third node,
// or one that something other than the tunnel encrypts.
//
//	   node A                                     node B
//	┌──────────────────────────┐               ┌──────────────────────────┐
//	│ client ── local          │               │ server (service, NodePort│
//	│   host network: host-a ──┼─ uplink ─ ≋ ──┼─ hostPort)               │
//	│   (client, and reads     │               │   host network: host-b   │
//	│    the uplinks)          │               │   (echo, and reads)      │
//	└──────────────────────────┘               └──────────────────────────┘
//
// Start reading at Walk; class.go has the kinds of flow, verdict.go the judgement.
package connectivity
