// Package path checks the path between a node of one cluster and a node of another, both ways. It
// starts a pod on the host's network of each node. One pod sends datagrams of several sizes to the
// port of the tunnels, and the other reads frames, because the port belongs to the tunnel.
//
// Start reading at Prober.Check. Verb is the hidden verb that runs in the pods.
package path
