// Volumetool works with volumes on a machine of package storage. It calls the driver (csi/driver)
// like a kubelet, with states and keys in files. Each verb runs in a process of its own, so that it
// finds what the verb before left. It prints one answer.Answer. Exit status 0 means that the answer
// holds the result, refusals included; 1 means that it could not begin. Its -h lists the verbs.
//
// Start reading at node.do.
package main
