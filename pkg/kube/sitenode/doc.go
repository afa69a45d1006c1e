// Package sitenode reads SiteNodes: nodes of another cluster, as veil-site or an administrator
// writes them. manifests/crd has the schema, which allows no more than Decode does.
//
//	list, watch ─► Store: open sites only, bounded ─► List ─► kube: the State
//
// A SiteNode is named by its site and its node, as in b.node-1. Its spec has the fields of a
// VeilNode, and the addresses of the node.
//
// Promises:
//   - SiteNodes of sites that are not open are counted and not decoded.
//   - Of each site at most MaxNodes are kept, the oldest by the time that the API server wrote. So
//     new objects displace no node that is linked. After a list, all nodes keep the same.
//   - A malformed SiteNode costs only itself.
//
// Start reading at Store.
package sitenode
