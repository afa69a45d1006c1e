// Package planner makes a policy.Plan of pods, namespaces and policies, and keeps it up to date.
//
// A Plan takes time in proportion to the changes since the last one: chains change when policies
// do, and a pod changes only the sets that may select it. A Set, Chain or Group that did not change
// keeps its pointer.
//
// A namespace whose changes take long can be planned by another goroutine, as a Draft. See
// Planner.Postpone.
//
// It is larger than most packages, because sets, chains and budgets are steps of one plan. Each
// step compares pointers to find what did not change.
//
// Start reading at Planner.Plan.
package planner
