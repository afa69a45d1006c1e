// Package site shows links between clusters, makes them and removes them.
//
// A verb works from the administrator's machine with a kubeconfig of one or of both clusters. link
// and unlink write what docs/how-to/sites.md would have a person write: an account in the other
// cluster, and its credentials in the Secret of veil-site. They never change the configuration of a
// cluster, because the ranges in it are what keeps packets from leaving in clear. Each cluster is
// recognized in the configuration of the other by its ranges, so no name is given twice.
//
// The check of the path (package path) sees no firewall in the node that receives, because it reads
// frames. status shows later which nodes answer.
//
// It promises:
//   - Nothing is written before all checks have passed.
//   - A token goes to the Secret, or to a new file of mode 0600, and never to a terminal or a log.
//   - Each verb may be repeated. unlink deletes no object that it and veil-site did not write.
//
// Start reading at Command, then pair.
package site
