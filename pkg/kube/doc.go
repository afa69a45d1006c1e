// Package kube is the Kubernetes source of the cluster state: it watches Node,
// VeilNode, SiteNode and the addresses of the API servers, and writes this node's own
// VeilNode. It and the packages below it are the only ones below pkg/ that import client-go.
//
//	bytes ─► wire ─► object ─► api: lists and watches ─┬─► kube: the State, the own VeilNode
//	                           veilnode: the claim  ◄──┤
//	                 sitenode: nodes of other clusters ┤
//	                           quota ─► feed ──────────┴─► servicefeed, policyfeed: sinks
//
// Promises:
//   - Nothing is believed from a half-read list. Until every kind has been listed once, a State is
//     not Synced and holds no claims. Otherwise a newcomer whose forged claim was listed first
//     would become the incumbent.
//   - A synced State is never followed by one that is not. While the API server is unreachable, the
//     last State stays valid.
//   - A malformed object costs only its own claim, which is nil. It is logged once, and Problems
//     returns it.
//   - No packet waits for this package. Publish returns at once, and writes are retried in the
//     background.
//
// It uses little memory, because objects are reduced to the used fields while they are decoded. A
// thousand nodes take a few hundred kilobytes. No generated client is linked. Nodes are requested
// in protobuf, from which package wire reads the used fields. An API server may also answer in
// JSON. VeilNodes exist only in JSON.
//
// A VeilNode is owned by its Node, so Kubernetes' garbage collector removes it with the Node. If no
// controller manager runs, nodes do that themselves (collect.go). Any node may delete a VeilNode
// some time after its Node disappeared. It first reads the Node from the API server, and has the
// UID of the VeilNode as a precondition. If a policy allows a node to write only its own VeilNode,
// the deletion is refused, and only the garbage collector can do it.
//
// SiteNodes are read only if a site is open. A State is Synced without them: SitesUnlisted reports
// that they are missing, so that another cluster costs this one nothing.
//
// The package is larger than most, because one goroutine makes a State of all these kinds.
//
// Start reading at run.go, then feeds.go.
package kube
