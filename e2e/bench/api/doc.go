// Package api measures what a request to the API servers costs: by entry 0 of the service table,
// beside the direct way, TCP proxies, and a proxy that re-encrypts.
//
// # The ground
//
// Everything is in network namespaces:
//
//	pod ── node (ours) ──┬── server-1    TLS 1.3 and HTTP/2 with client
//	198.18.0.2           ├── server-2    certificates, one ConfigMap in
//	pod ── node (plain) ─┴── server-3    memory, at 198.18.3.1 to .3
//	198.18.1.2
//
// The node called ours has everything that veild puts in force on a node except tunnels, and a
// service table with entry 0, whose backends are the three servers. Programs at sockets are
// attached to a cgroup that contains the clients. The plain node has nothing of Kubeveil. Servers,
// clients and proxies are processes of their own.
//
// # The sides
//
// Each address has an IPv6 address beside it, which parts pod6 and host6 dial.
//
// A client is in the pod or on the node (a host process, such as a kubelet). "Direct" dials the
// servers' own addresses from the same place on the same node, so that only the path differs. Each
// connection goes to a random server, as by entry 0. "Again" repeats it as the control. Proxies
// listen on loopback of the node, which costs them less than a machine of their own. The last proxy
// has the shape of KubeGateway: it ends TLS, impersonates the user of the client's certificate, and
// sends each request to a server over connections of its own.
//
// # Real servers
//
// The other parts have a lab (e2e/lab) with two real API servers on one etcd and the whole veild.
// Clients hold connections to the service's address: HTTP/1.1 as curl has it, client-go with its
// defaults, and HTTP/2 without pings. Watches beside them follow an object that is written.
//
//	failure   A server loses its power, its packets, or its CPU. The longest wait of each kind
//	          of client counts, and the events that watches missed.
//	hang      Its handlers hang, and it answers pings: its audit log is a pipe that is
//	          not read. The last new connection to it counts.
//	well      It is not ready (its etcd is gone), slow, or ready and not in turns. Connections
//	          that are closed count: all of them are well.
//	probers   10,000 nodes probe it. Its CPU and the latency of GETs are reported.
//	restart   Both restart, with --goaway-chance. How their clients are spread after ten
//	          minutes counts.
//	failure6  Part failure over IPv6.
//
// # What it promises
//
// Load is an open loop: each request begins at a moment that was fixed before, and its latency
// counts from there, so a stall is seen by all requests of its time (no coordinated omission). Each
// answer is checked: its status, its body, and the user that the server took the client for. One
// that is wrong or late ends the part. Servers count requests; the client's count must be the same.
// CPU time is all that is not idle on the machine in the time that counts: clients, servers,
// proxies and kernel.
//
// The rest is as in e2e/bench/service: nothing is touched but what the run has made, and all of it
// goes with the process (pkg/bench/suite).
//
// veild's probes of the servers are not in the latencies. They run regardless of the address that a
// client dials.
//
// Start reading at Run in suite.go; side.go has the sides. Package testbed has the namespaces, and
// packages server and client have the processes. broken.go has the lab, failure.go and the files
// named as parts the rest.
package api
