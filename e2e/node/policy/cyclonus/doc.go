// Package cyclonus compares NetworkPolicy with an oracle that others wrote: the generator of test
// cases and the matcher of github.com/mattfenwick/cyclonus. It has tests only.
//
//	hack/tools/cyclonus ─► cases, verdicts ─► API server ─► pkg/kube ─► Planner ─► Plan ─► nftables
//	                          │                                          │           │
//	                          └────────────── all three agree ───────────┴───────────┘
//
// In a lab, veilctl policy try predicts which connections the policies of a case end, and the case
// then shows whether it is right (TestTriesOfCasesComeTrue).
//
// Start reading at TestPlansAndTablesJudgeAsCyclonus. The variable differences lists the cases in
// which cyclonus and Kubernetes differ, with the reasons.
package cyclonus
