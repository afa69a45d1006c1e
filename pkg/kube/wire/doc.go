// Package wire reads the few fields of Kubernetes' objects that Kubeveil needs in
// their protobuf form, in one pass and without the rest. A Node of a busy cluster
// has 12 KB, of which veild uses some hundred bytes.
//
// The field numbers come from the generated.proto files of k8s.io/apimachinery and
// k8s.io/api, which never change their meaning. The client library reads the
// envelope around an object and the frames of a watch.
//
// It promises:
//   - It reads a message as the decoder of k8s.io/api does. If a field occurs twice, its last value
//     counts, and messages are merged. The fuzz tests compare the two.
//   - Its results do not refer to the bytes that it read.
//   - It allocates only for kept fields, and never by the length that a field claims.
//   - It counts what it keeps (bound.go). If a bound is exceeded, the field is dropped, the object
//     reports that, and reading continues.
//
// ReadList holds one item of a list at a time, regardless of the length of the answer.
//
// It refuses truncated messages and wanted fields with a wrong wire type (ErrMalformed). It does
// not check skipped fields.
//
// Start reading at Reader.Node, then field.go.
package wire
