// Package explain answers why policies allow or deny: which policies isolate a pod, which policy
// and rule decide a flow, and what a Planner has for a pod, in words. It changes nothing.
//
// Start reading at Flow and at Pod.
package explain
