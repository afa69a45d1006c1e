// Package netns runs a function inside another network namespace. It is the
// only place that calls setns(2).
//
// A thread that could not come back to where it was is never given back to the
// Go scheduler: its goroutine stays locked and the thread ends with it.
package netns
