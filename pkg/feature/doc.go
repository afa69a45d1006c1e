// Package feature is how a part of veild plugs into the agent: the Feature that the agent drives,
// and what the agent hands to it.
//
//	New ─► Begin ─► Run ──────────────────────────► Close
//	                 ├ Turn(what a turn believes)   from the loop
//	                 ├ KernelChanged(notification)  from the watch of the kernel
//	                 ├ Closed ─► guard              to the loop
//	                 └ Status, Pages                to the admin socket and metrics
//
// Each feature builds itself in its own package, from options that the agent fills in. The agent
// knows a feature by one line in its list (pkg/agent/features.go). To add a feature, write a type
// that embeds None, give it the methods that it needs, and add that line.
//
// A feature promises:
//   - Begin puts in force what an earlier veild left, before any pod can be attached.
//   - A feature that the configuration turns off takes out of force what an earlier veild left.
//   - What is in force stays so when Run ends.
//   - Turn and KernelChanged wait neither for the API server nor for what the goroutine of Run
//     writes to the kernel.
//
// The package knows neither the kernel nor Kubernetes.
package feature
