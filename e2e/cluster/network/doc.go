// Package network holds the end-to-end cases of correctness and runs them against a cluster that is
// known by a kubeconfig.
//
// It promises: cases run one after the other in the order of Cases; each has a limit of time; what
// a failed one left is described in a folder of its own before it is removed; a case that needs
// what the cluster has not is skipped and named with the reason; and with machines beneath the
// cluster, a case during which the oracle saw plaintext has failed, whatever it says itself. All
// traffic of the cases carries the cluster's canary, that to the outside the outside's.
//
// It disturbs the cluster: daemons are rolled, the MTU changes, and with machines nodes reboot and
// Kubeveil is uninstalled. What operators run on a cluster in use is package connectivity.
//
// What is not proven by the traffic alone is read on the wire: see Report.Judge. An oracle that was
// not seen to find the plaintext of the reference network proves nothing, and the report says so.
//
// It is larger than most packages: each case is a method of the one Session, and the order of Cases
// is part of what they test.
//
// Start reading at Cases, then Run.
package network
