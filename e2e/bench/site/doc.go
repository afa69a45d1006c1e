// Package site measures a service of another cluster: through a link of sites, in clear, and through
// pairs of TLS proxies.
//
//	client pod ── node a ── link ── node b ── server pod
//
// The nodes are namespaces of two labs (e2e/lab). In one lab Kubeveil connects two clusters of a
// node each. The client dials the ClusterIP of the derived Service that veil-site writes for an
// export of the other cluster, and veild's service table translates it (serviceProxy: ebpf). In the
// other lab the reference plugins connect the nodes in clear. The lanes "clear", "haproxy" and "go"
// share it: the client dials the server, or a proxy on node a, whose peer on node b dials the server.
//
// # What it promises
//
// In each round, each lane is measured twice, in random order. The two samples of a lane are its
// control: a gate is judged only if those of both compared lanes differ by less than the gate's
// margin. A gate that is also kept within its control is judged only if the rounds of clear differ
// little. "Best pair" has the better sample of the two pairs in each round, for each quantity by
// itself, so it may be better than either pair. "Added" is the difference to clear in the same
// round.
//
// Latencies are of open loops (package openloop): they count from when an operation was due. CPU is
// the time of the whole machine in the measured time, without the set-up of connections.
//
// Before a run measures, each lane must answer, and the labs' leak oracles must see no byte of the
// link of Kubeveil in clear, and must see those of the other lab.
//
// Start reading at Run. group.go has the comparison, world.go the lanes.
package site
