// Volumetool works with volumes on a machine of package disk. It calls the driver (csi/driver) like
// a kubelet, with states and keys in files. Each verb runs in a new process and continues from the
// disks and files that the earlier verbs left. It prints one answer.Answer. Exit status 0 means
// that the answer has the result, which may be an error. Exit status 1 means that volumetool could
// not begin. Its -h lists the verbs.
//
// Start reading at node.do.
package main
