// Package lab has the verbs of test traffic that suites and veilctl run in nodes and pods: servers,
// and clients that count answers.
//
// It promises that every payload contains the canary from the environment variable LAB_CANARY, by
// which the leak oracle finds the payload. A verb that ends prints its result as one line of JSON,
// even with an error.
//
// Start reading at Verbs.
package lab
