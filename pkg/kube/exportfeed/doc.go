// Package exportfeed passes ServiceExports, and the endpoints of this node in EndpointSlices, to a
// sink: the table of package export.
//
// It promises:
//   - Only endpoints with the name of this node are kept, checked while a list is read.
//   - A namespace has a bound for each kind. Beyond it, the last objects by name are left out and
//     reported. Their endpoints stay closed.
//   - A malformed object costs only itself. An export whose sites cannot be read is for no site.
//   - The kind ServiceExport may be missing. Then nothing is exported.
//
// Start with Run in run.go.
package exportfeed
