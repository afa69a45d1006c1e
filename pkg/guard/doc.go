// Package guard drops what must not be on the network in clear: BPF programs
// at tc of every link that is neither a tunnel nor a pod's, and an nftables
// table that does not depend on links, for the moment until a new link has its
// programs. The table also keeps the answers of nodes to pods inside (translate.go).
// It refuses connections of pods to where there is no route (refuse.go).
// A second table marks what comes from pods and drops what they forge (pods.go).
// Whose a packet is, its input link says, whatever mark another program gave it (origin.go).
// Tunnel datagrams are taken from believed nodes only (datagram.go).
//
// It promises that what it put in force stays so without this process: programs
// and maps are pinned, attachments belong to the links. Open adopts what an
// earlier process left; other programs are attached before those of an earlier
// version are detached, so at no moment is a guarded link without one. Apply
// twice changes nothing the second time.
//
// It refuses to take away or to change a program, filter, table or file that is
// not ours, and to mount anything. It does not know
// the pods: the CNI plugin puts their addresses into the sets that are made here.
//
// Invariants: map entries are added before others are deleted; all changes of an nftables table are
// one transaction, and one of the pods' rules leaves the pods' addresses; a link is ours to skip
// only by its group (pod veths, tunnels), being lo or being an ifb.
//
// All calls work on the network namespace of the calling thread.
//
// Start with Apply in guard.go, then Plan and Diff in plan.go.
package guard
