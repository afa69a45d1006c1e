// Package connectivity walks the kinds of flow of a cluster on two of its nodes and reports for
// each what happened to its payload.
//
// It reports what was observed, not what should happen. The payload of every flow holds a random
// canary. During the flow, the leak oracle reads the uplinks of both nodes in host-network pods.
// The verdict follows from what came back and what was seen:
//
//   - *encrypted*: the payload came back and was not seen, but tunnel packets were;
//   - *in clear*: the payload was seen. Where the documentation lists the flow as an exception, the
//     verdict is *outside the cluster* or *host to host*;
//   - *refused*: the payload did not come back and was not seen;
//   - *stays on the node*: both ends are on one node, and the payload came back and was not seen.
//
// The first flow goes from one node's own address to the other's. docs/security.md lists it as an
// exception, so its payload crosses the uplinks in clear. If the oracle does not see it, the oracle
// does not work: the walk then ends with ErrBlind and proves nothing.
//
// A walk creates pods and a service in a new namespace and deletes the namespace, also after an
// error or after the end of the context. It changes no other objects. It does not detect a payload
// in clear on a third node, and it does not detect that a program other than the tunnel encrypts.
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
