// Package network holds the end-to-end cases of correctness and runs them against the cluster of a
// kubeconfig.
//
// It promises that cases run one after the other in the order of Cases, and that each has a time
// limit. When a case fails, the state that it left is written to a folder before it is removed. A
// case whose needs the cluster does not meet is skipped and listed with the reason. If the run made
// the cluster's machines, a case fails if the oracle saw plaintext during it, regardless of its own
// outcome. All traffic of the cases carries the cluster's canary. Traffic to the outside carries
// the outside's canary.
//
// It disturbs the cluster: daemons are rolled, the MTU changes, and with machines nodes reboot and
// Kubeveil is uninstalled. For a cluster in use, operators run package connectivity.
//
// The oracle on the wire checks promises that answered traffic cannot prove: see
// session.Report.Judge. If the oracle did not find the plaintext of the reference network, its
// results prove nothing, and the report states that.
//
// Package session runs cases and has the state that they share. The cases are in the packages pods,
// nodes and servers.
//
// Start reading at Cases.
package network
