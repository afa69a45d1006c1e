// Package publisher writes the VeilNode of a node: the claim that the node publishes about itself.
//
// It promises:
//   - No caller waits for the API server, except for Remove.
//   - A write follows each change by others, and is retried with a back-off.
//   - It writes nothing if the object is already as wanted, also if the API server's schema drops
//     features of this version.
//   - The object is owned by the Node, so Kubernetes' garbage collector removes it with the Node.
//
// Start reading at Publisher.Run.
package publisher
