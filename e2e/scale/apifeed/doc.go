// Package apifeed has the part of an API server that veild's reader of services needs, in memory:
// streaming lists (KEP-3157) and watches of Services and EndpointSlices in protobuf, over TLS and
// HTTP/2 on a loopback address.
//
//	Put, Delete ─► objects ─► initial events of a list ─┐
//	          └──► log of events ─► watch ──────────────┴─► veild
//
// Promises:
//   - Objects are encoded when they are put, so that a request costs the feed only its writing.
//   - Each change has a revision of its own. A watch sends the events after its revision, in their
//     order, or the error that the revision is too old (410) if Compact removed one of them.
//
// Tests use its faults: Cut breaks all connections, Hold stops a list midway, Bookmark lies about
// the revision, Expire ends watches, and PutBad puts an object that cannot be read. It refuses
// plain lists, except the empty list by which a client reads the current revision.
//
// Start reading at Feed, then serve.go. shape.go makes the objects of a large cluster.
package apifeed
