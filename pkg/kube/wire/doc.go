// Package wire reads the few fields of Kubernetes' objects that Kubeveil needs in
// their protobuf form, in one pass and without the rest. A Node of a busy cluster
// has 12 KB, of which veild uses some hundred bytes.
//
// The field numbers come from the generated.proto files of k8s.io/apimachinery and
// k8s.io/api, which never change their meaning. The client library reads the
// envelope around an object and the frames of a watch.
//
// It promises:
//   - What the decoder of k8s.io/api writes and reads, it reads the same way: a field
//     that is there twice counts by its last value, and messages are merged. The fuzz
//     tests compare the two.
//   - Nothing that it returns refers to the bytes that it read.
//   - It allocates only for fields that are kept, regardless of the length that a field claims.
//   - It counts what it keeps while it reads (bound.go). Beyond a bound the field is dropped, the
//     object records that, and the rest is read.
//
// ReadList holds one item of a list at a time, regardless of the length of the answer.
//
// It refuses (ErrMalformed) what is cut short and wanted fields of another wire
// type. What is skipped is not looked into.
//
// Start reading at Reader.Node, then field.go.
package wire
