// Package api sends requests to the API server: lists, watches and single objects. It keeps what
// fails as problems, which veild reports.
//
//	Server ─► Reflector: list, watch, head ─► a store, which reduces objects as they come
//	       ├─► Read, Create, Replace, Delete: one object
//	       └─► Report, Note ─► Problems
//
// Promises:
//   - Every request but a watch has a bound in time.
//   - A problem is logged when it begins, changes or ends, not each time that it occurs. Explain
//     adds what to do.
//   - Requests move between API servers: one that restarted gets its share of watches again.
//   - What internal/reflector promises of a restored etcd and of a server that lags.
//
// Start reading at Server, then reflect.go.
package api
