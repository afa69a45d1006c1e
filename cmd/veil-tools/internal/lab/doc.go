// Package lab has the verbs of test traffic that suites and veilctl run in nodes and pods: servers,
// and clients that count what is answered.
//
// It promises that every payload holds the canary of the environment variable LAB_CANARY, by which
// the leak oracle finds it. A verb that ends prints its result as one line of JSON, also beside an
// error.
//
// Start reading at Verbs.
package lab
