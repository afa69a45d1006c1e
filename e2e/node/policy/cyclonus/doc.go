// Package cyclonus compares NetworkPolicy with an oracle that others wrote: the generator of test
// cases and the matcher of github.com/mattfenwick/cyclonus. It has tests only.
//
//	hack/tools/cyclonus ─► cases, verdicts ─► API server ─► pkg/kube ─► Planner ─► Plan ─► nftables
//	                          │                                          │           │
//	                          └────────────── all three agree ───────────┴───────────┘
//
// Start reading at TestPlansAndTablesJudgeAsCyclonus. Where cyclonus and Kubernetes differ is in
// differences, with the reasons.
package cyclonus
