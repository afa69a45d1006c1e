// Package peer starts what the table of services is measured beside: kube-proxy, the program that
// clusters run, and haproxy. Feed stands in for the API server from which kube-proxy, and veild's
// own client, read the services.
//
// # What it promises
//
// KubeProxy.Start returns when kube-proxy reports that the rules of all services are written. It
// returns ErrLate if that takes longer than its limit. The rules stay when kube-proxy is closed,
// until the namespace ends. kube-proxy has its defaults, except that it writes changes without a
// pause, leaves the machine's limits of connection tracking alone, and has IPv4 only. Its times
// come from its own metrics.
//
// A feed answers lists and watches of Services, EndpointSlices, one Node and ServiceCIDRs, of which
// it has none. It answers every other request with 404.
//
// Services have TCP and IPv4, and endpoints on another node. Start reading at KubeProxy.Start in
// kubeproxy.go, then Feed.
package peer
