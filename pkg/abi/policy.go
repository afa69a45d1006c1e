package abi

// The nftables tables that enforce NetworkPolicy, and parts of them. veild makes them, and the
// plugin fills the sets of members.
const (
	// NFTPolicyTable judges the first packet of each connection of a pod.
	NFTPolicyTable = "kubeveil_policy"
	// NFTStampTable drops packets of pods that NFTPolicyTable did not judge.
	NFTStampTable = "kubeveil_stamp"
	// NFTPolicyPost and NFTPolicyHost are the chains of NFTPolicyTable at postrouting and input.
	NFTPolicyPost = "post"
	NFTPolicyHost = "host"
	// NFTMembers4 and NFTMembers6 are prefixes of the names of sets. Such a set holds the addresses
	// of a group's members, and its name ends with the name of the group.
	NFTMembers4 = "m4_"
	NFTMembers6 = "m6_"
	// NFTSelf4 and NFTSelf6 are sets that allow a pod to reach itself through a service. An element
	// is the pod's address twice: address . address.
	NFTSelf4 = "self4"
	NFTSelf6 = "self6"
)

// PolicyDir holds a file with the group of each pod that is bound to this node. It exists only
// where NetworkPolicy is enforced. If it has no file for a pod, the pod is attached mute: its
// packets are dropped.
const PolicyDir = RunDir + "/policy"
