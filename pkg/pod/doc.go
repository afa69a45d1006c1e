// Package pod makes all changes of the CNI plugin in the kernel and in /run for one pod interface.
// The plugin and the daemon share it: the plugin attaches, checks and detaches; the daemon repairs
// what was flushed and changes the MTU of living pods.
//
// It promises:
//   - the host end of a pod's veth is in PodGroup from its first moment. By the group the
//     rules of abi.NFTPodTable mark and judge its packets. It is up only once its
//     addresses are in their sets: without them the pod is mute;
//   - Attach that fails leaves nothing, by one explicit undo list;
//   - Detach may be repeated, and needs neither the pod's namespace nor a record
//     that can be read;
//   - a record is on disk before the link exists and until after it is gone, so
//     List finds everything that a crash leaves behind.
//
// It refuses to attach anything while the node is not guarded: see Gate.
// Nothing here talks to the API server or to the daemon.
//
//	pod namespace                      node
//	ifName  addr/32, addr/128          vpodXXXXXXXXXXX  (PodGroup)
//	  169.254.1.1, fe80::1 ── veth ──  kubeveil_pods: mark, @pods4, @pods6
//	  default via them, mtu            host routes in main and TablePod
//	  permanent neighbours             permanent neighbours
//
// It is larger than most packages: the plugin and the daemon share the records, their locks and the
// format of a pod's addresses in nftables.
//
// Start reading at Attach, then Check and RepairAll: the three share want.go, which derives the
// wanted state from a record.
package pod
