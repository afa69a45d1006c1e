// Package lab has the verbs that suites and veilctl run in nodes and pods: the process that holds
// the namespaces of a lab's node, test traffic and its peers, the container runtime's side of CNI,
// and the reader of uplinks.
//
// It promises that every payload holds the canary of the environment variable LAB_CANARY, by which
// the leak oracle finds it. A verb that ends prints its result as one line of JSON, also beside an
// error.
//
// It is larger than most packages: each verb is a file or two; they share flags, payloads and the
// form of results.
//
// Start reading at Verbs.
package lab
