// Package apiwrite writes the objects of a large cluster to a real API server: in protobuf, encoded
// before, by parallel requests.
//
//	objects ─► Create ─► requests ─► Writer.Send, 32 at a time ─► API server
//
// It promises that an object is what its controller sends: it has no field that the API server
// sets, and the API server notes the controller as the manager of its fields. An answer other than
// success ends Send with an error that has the request and the answer.
//
// Start reading at Create.
package apiwrite
