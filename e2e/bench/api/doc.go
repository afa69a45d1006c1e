// Package api measures what a request to the API servers costs through entry 0 of the service
// table, which is the service kubernetes. It compares this path with the direct path, with TCP
// proxies, and with a proxy that re-encrypts.
//
// # The test bed
//
// Everything is in network namespaces:
//
//	pod ── node (ours) ──┬── server-1    TLS 1.3 and HTTP/2 with client
//	198.18.0.2           ├── server-2    certificates, one ConfigMap in
//	pod ── node (plain) ─┴── server-3    memory, at 198.18.3.1 to .3
//	198.18.1.2
//
// The node called ours has everything that veild installs on a node except tunnels, and a service
// table with entry 0, whose backends are the three servers. Socket programs are attached to a
// cgroup that contains the clients. The plain node has nothing of Kubeveil. Each server, client and
// proxy is a process of its own.
//
// # The sides
//
// Each IPv4 address has an IPv6 counterpart, which parts pod6 and host6 dial.
//
// A client is in the pod or on the node (a host process, such as a kubelet). "Direct" dials the
// servers' own addresses from the same place on the same node, so that only the path differs. Each
// of its connections goes to a random server, as with entry 0. "Again" repeats "direct" as the
// control. Proxies listen on loopback of the node, which costs less than a proxy on its own
// machine. The last proxy has the shape of KubeGateway: it terminates TLS, impersonates the user of
// the client's certificate, and sends each request to a server over its own connections.
//
// # Real servers
//
// The other parts use a lab (e2e/lab) with two real API servers on one etcd and a complete veild.
// Clients hold connections to the service's address: HTTP/1.1 as curl uses it, client-go with its
// defaults, and HTTP/2 without pings. Watches follow an object that the suite writes meanwhile.
//
//	failure   A server loses its power, its packets, or its CPU. Judged: the longest wait of
//	          each kind of client, and the events that watches missed.
//	hang      A server's handlers hang, but the server answers pings. Its audit log is a
//	          pipe that no process reads. Judged: when the last new connection reached it.
//	well      A server is not ready (without etcd), slow, or alternates between ready and not
//	          ready. Judged: how many connections are closed although they still work.
//	probers   10,000 nodes probe a server. Reported: its CPU and the latency of GETs.
//	restart   Both servers restart, with --goaway-chance. Judged: how connections are spread
//	          over the servers after ten minutes.
//	failure6  Part failure over IPv6.
//
// # What it promises
//
// The load is an open loop: each request is due at a fixed time, and its latency counts from that
// time. A stall therefore delays all requests that are due during it (no coordinated omission).
// Clients check each answer: its status, its body, and the user as which the server authenticated
// the client. A wrong or late answer ends the part. The servers' count of requests must equal the
// clients'. CPU time is all time of the machine that is not idle while requests count: clients,
// servers, proxies and kernel.
//
// As in e2e/bench/service, a run changes only things that it made, and all of them end with the
// process (pkg/bench/suite).
//
// Latencies of the parts with sides do not include veild's probes of the servers, because no veild
// runs there. The probes run regardless of the address that a client dials.
//
// Start reading at Run in suite.go; side.go has the sides. Package testbed has the namespaces.
// Packages server and client have the processes. Package faultlab has the lab. failure.go, hang.go,
// well.go, probers.go and restart.go have the parts that use it.
package api
