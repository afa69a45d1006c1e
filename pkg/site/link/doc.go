// Package link keeps the objects of links between clusters as they must be: what this cluster
// states to sites, and what it mirrors from them.
//
//	own API server ─► inventory ─┬─► publish.Plan ─► SiteRecords in kubeveil-site-NAME
//	                             │
//	API server of b ───► remote ─┴─► mirror.Plan ─► SiteNodes, ServiceImports,
//	                                                derived Services, EndpointSlices, SiteLinks
//
// Promises:
//   - Nothing is written or deleted until each kind of the own API server has been listed.
//   - While a site cannot be read, its mirrored objects stay, as far as the configuration still
//     accepts them. Other sites do not wait for its answers. Its changes have a share of the
//     writes of each round, so others wait for one round at most.
//   - A restart compares everything: nothing is remembered outside of the objects.
//   - Answers of a site are bounded in bytes, and in nodes, services and endpoints, while they are
//     read. Records that are mirrored already have priority where nodes or services are too many.
//   - The head of the records is written after the others of a round. Its digest changes while some
//     of them wait, and stands for all of them once they are written.
//   - Services, EndpointSlices and ServiceImports that veil-site did not write are never changed.
//     One that has a needed name is shown. SiteNodes and SiteRecords are all its own.
//
// One process at a time may run a Linker; the caller elects it. Start reading at Linker.
package link
