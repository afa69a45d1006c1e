package abi

// Parts of the nftables table that enforces NetworkPolicy: veild makes them, and the plugin fills
// the sets of members.
const (
	// NFTPolicyTable judges the first packet of each connection of a pod.
	NFTPolicyTable = "kubeveil_policy"
	// NFTStampTable drops packets of pods that NFTPolicyTable did not judge.
	NFTStampTable = "kubeveil_stamp"
	// NFTPolicyPost and NFTPolicyHost are its chains at postrouting and input.
	NFTPolicyPost = "post"
	NFTPolicyHost = "host"
	// NFTMembers4 and NFTMembers6 are the prefixes of the names of the sets with the addresses of a
	// group's members; the name of the group follows.
	NFTMembers4 = "m4_"
	NFTMembers6 = "m6_"
	// NFTSelf4 and NFTSelf6 let a pod reach itself through a service. An element is address .
	// address, twice the same.
	NFTSelf4 = "self4"
	NFTSelf6 = "self6"
)

// PolicyDir holds, where NetworkPolicy is enforced, the group of each pod that is bound to this
// node. If the directory exists without a group for a pod, the pod is attached mute.
const PolicyDir = RunDir + "/policy"
