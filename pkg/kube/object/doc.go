// Package object reads the objects that an API server sends: kind.go lists every kind that veild
// reads, and a list is read item by item. What an object means is judged by the packages that parse
// it.
//
//	answer ─► Read ─► Object ─► reduce ─► the next item
//	            │       ├─ Content: fields that package wire read from protobuf
//	            │       └─ Spec, Status, …: text of JSON
//	            └─ an item that reduce leaves out is not held
//
// Promises:
//   - Malformed content in JSON, and of a Service or an EndpointSlice in protobuf, never ends the
//     stream of a watch. Another malformed object in protobuf ends it.
//   - A list takes the memory of its reduced items and of its largest item.
//   - Parts of JSON that are too large are not decoded (json.go). Package wire bounds protobuf.
//   - Node, Service and EndpointSlice return the same content for protobuf and JSON.
//
// Start reading at kind.go, then Object.
package object
