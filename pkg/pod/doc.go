// Package pod makes all changes of the CNI plugin in the kernel and in /run for one pod interface.
// The plugin and the daemon share it: the plugin attaches, checks and detaches; the daemon repairs
// what was flushed and changes the MTU of living pods.
//
// It promises:
//   - The host end of a pod's veth is created in PodGroup, by which the rules of abi.NFTPodTable
//     mark and filter its packets. It is set up only after the pod's addresses are in the sets. A
//     pod whose addresses are not in the sets is mute: its packets are dropped.
//   - If Attach fails, nothing is left behind, because it keeps one explicit undo list.
//   - Detach can be repeated. It needs neither the pod's namespace nor a readable record.
//   - A record exists before its link is made and until after the link is gone. So List finds
//     everything that a crash leaves behind.
//
// It refuses to attach a pod while the node is not guarded; see Gate. It communicates neither with
// the API server nor with the daemon.
//
//	pod namespace                      node
//	ifName  addr/32, addr/128          vpodXXXXXXXXXXX  (PodGroup)
//	  169.254.1.1, fe80::1 ── veth ──  kubeveil_pods: mark, @pods4, @pods6
//	  default via them, mtu            host routes in main and TablePod
//	  permanent neighbours             permanent neighbours
//
// The package is larger than most, because the plugin and the daemon share the records, their locks
// and the format of a pod's addresses in nftables.
//
// Start reading at Attach, then Check and RepairAll: the three share want.go, which derives the
// wanted state from a record.
package pod
