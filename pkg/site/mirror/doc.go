// Package mirror decides which objects this cluster gets from what sites state. It is pure.
//
//	SiteRecords of each site ─┐
//	own exports ──────────────┼─► Plan ─► SiteNodes; for each import a ServiceImport, a derived
//	what exists already ──────┘          Service without selector, and EndpointSlices
//
// Promises:
//   - A site states only what is its own: addresses of nodes inside its nodeRanges, pod prefixes
//     and endpoints inside its podRanges, and no key of a node of this cluster. Anything else is
//     refused, counted and shown. It costs only itself.
//   - Services of a site are imported only into the namespaces that its imports accept.
//   - A site that is not read yet, or that states nothing, changes nothing: its objects stay.
//   - A site that states a range that overlaps one of this cluster gets no object.
//   - If exports of several clusters differ, the oldest decides. The age of a site's export counts
//     from the time that the site states, but from at most ten seconds before this cluster first
//     saw it. So a forged time displaces no export that was there before.
//
// Start reading at Plan, then merge.go.
package mirror
