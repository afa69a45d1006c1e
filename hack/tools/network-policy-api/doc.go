// Package conformance runs the upstream's tests of ClusterNetworkPolicy as subtests of one test. The
// tests are unchanged. Flags set how long they wait: the upstream's own program has no flag for
// that, and its ten seconds are too few for a connection that an emulated machine tries.
//
// `hack/build-conformance.sh policy` builds it with `go test -c`. Command list prints the names of
// the subtests.
package conformance
