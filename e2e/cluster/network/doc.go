// Package network holds the end-to-end cases of correctness and runs them against a cluster that is
// known by a kubeconfig.
//
// It promises that cases run one after the other in the order of Cases, and that each has a time
// limit. When a case fails, its remains are described in a folder of their own before they are
// removed. A case that needs something that the cluster lacks is skipped and listed with the
// reason. With machines beneath the cluster, a case during which the oracle saw plaintext has
// failed, regardless of its own outcome. All traffic of the cases carries the cluster's canary;
// traffic to the outside carries the outside's canary.
//
// It disturbs the cluster: daemons are rolled, the MTU changes, and with machines nodes reboot and
// Kubeveil is uninstalled. For a cluster in use, operators run package connectivity.
//
// Promises that traffic alone cannot prove are checked on the wire: see session.Report.Judge. An
// oracle that did not find the plaintext of the reference network proves nothing, and the report
// states it.
//
// Package session runs cases and has what they share; the cases stand in the packages pods, nodes
// and servers.
//
// Start reading at Cases.
package network
