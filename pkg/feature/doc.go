// Package feature is how a part of veild plugs into the agent: the Feature that the agent drives,
// and what the agent hands to it.
//
//	New ─► Begin ─► Run ──────────────────────────► Close
//	                 ├ Turn(what a turn believes)   from the loop
//	                 ├ KernelChanged(notification)  from the watch of the kernel
//	                 ├ Closed, Opened ─► guard      to the loop
//	                 └ Status, Pages                to the admin socket and metrics
//
// The package of a feature has a constructor, whose options the agent fills in. The agent lists
// each feature in one line of pkg/agent/features.go. To add a feature, write a type that embeds
// None, give it the methods that it needs, and add that line.
//
// Every feature keeps these rules:
//   - Begin restores in the kernel what an earlier veild left, before any pod can be attached.
//   - A feature that the configuration turns off removes from the kernel what an earlier veild
//     left.
//   - The state of the kernel stays when Run ends.
//   - Turn and KernelChanged wait neither for the API server nor for the kernel writes of Run's
//     goroutine.
//
// The package uses neither the kernel nor Kubernetes.
package feature
