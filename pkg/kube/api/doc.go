// Package api sends requests to the API server: lists, watches and single objects. It keeps what
// fails as problems, which veild reports.
//
//	Server ─► Reflector: list, watch, head ─► a store, which reduces objects as they come
//	       ├─► Read, Create, Replace, Delete: one object
//	       └─► Report, Note ─► Problems
//
// Promises:
//   - Every request except a watch has a timeout.
//   - A problem is logged when it begins, changes or ends, not each time that it occurs. Explain
//     adds a remedy.
//   - Connections move between API servers, so that a restarted server gets its share of watches
//     again.
//   - It also has the promises of internal/reflector about a restored etcd and about servers that
//     lag.
//
// Start reading at Server, then reflect.go.
package api
