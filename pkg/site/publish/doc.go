// Package publish decides what this cluster states to a site: its ranges, its nodes, and the
// services that it exports to that site. It is pure.
//
//	Nodes, VeilNodes, ServiceExports, Services, EndpointSlices ─► Plan ─► SiteRecords of a site
//
// Promises:
//   - A closed site gets the ranges only, without nodes and services.
//   - An address is stated only inside the ranges of this cluster's own configuration.
//   - A node is stated only if its VeilNode has the prefixes of its Node.
//   - Beyond the bounds of package record the newest nodes are left out and counted, and the newest
//     exports of the namespaces that have most.
//
// Start reading at Plan.
package publish
