// Package kube is the Kubernetes source of the cluster state: it watches Node,
// VeilNode and the addresses of the API servers, and writes this node's own
// VeilNode. It and the packages below it are the only ones below pkg/ that import client-go.
//
//	bytes ─► wire ─► object ─► api: lists and watches ─┬─► kube: the State, the own VeilNode
//	                           veilnode: the claim  ◄──┤
//	                           quota ─► feed ──────────┴─► servicefeed, policyfeed: sinks
//
// Promises:
//   - Nothing is believed from a half-read list. Until every kind has been
//     listed once, a State is not Synced and holds no claims: otherwise a
//     newcomer whose forged claim happened to be listed first would be the incumbent.
//   - Once synced, always synced: while the API server is away the last
//     State stands, and nothing emptier is ever yielded.
//   - A malformed object costs its own claim, never the source: its claim is
//     nil, it is logged once, and it is shown by Problems.
//   - Nothing here is on the way of a packet: Publish returns at once, and
//     writes are retried in the background.
//
// It holds little: objects are reduced to the fields in use while they are decoded. A thousand
// nodes are a few hundred kilobytes. No generated client is linked. Nodes are requested as
// protobuf, from which package wire reads the fields that are used. An API server may also answer
// in JSON. VeilNodes exist only in JSON.
//
// A VeilNode is owned by its Node, so Kubernetes' garbage collector removes it with the Node. Where
// no controller manager runs, the nodes do it themselves (collect.go): any node may, a while after
// the Node went, after asking the API server once more, with the object's UID as a precondition.
// Where a policy allows each node its own VeilNode only, that is refused and left to the garbage
// collector.
//
// Start reading at run.go, then feeds.go.
package kube
