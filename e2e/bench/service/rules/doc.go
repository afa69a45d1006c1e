// Package rules writes the configuration of the other sides for the same services: the nftables and
// iptables rules that kube-proxy writes, a configuration of haproxy, and a table of IPVS.
//
// It promises the shape of kube-proxy of Kubernetes 1.36 with its defaults, chain for chain and
// rule for rule in the path of a packet (pkg/proxy/nftables and pkg/proxy/iptables there; their
// tests show the rules, and ours compare names and rules with those). In nftables a service is an
// element of the verdict map service-ips and a chain whose rule takes one of the backends from an
// anonymous map by numgen random; chains for each endpoint are made for session affinity only. In
// iptables a service is a rule in KUBE-SERVICES, where the services that are measured stand in the
// middle, as kube-proxy's order is random. Services that only fill tables (Idle) have no map in
// their chain.
//
// It leaves out what no packet of the measurements meets: node ports, source ranges, session
// affinity, services without endpoints, counters of nfacct, and the set of hairpin connections,
// which has local endpoints only. Each command adds many elements, which has the same effect in the
// kernel and takes less time.
//
// Services are of TCP and IPv4. Start reading at Service.
package rules
