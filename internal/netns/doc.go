// Package netns runs a function inside another network namespace. It is the
// only place that calls setns(2).
//
// If a thread cannot return to its former namespace, its goroutine stays locked to it, so that the
// thread ends with the goroutine and the Go scheduler never uses it again.
package netns
