// Package peer has kube-proxy and haproxy, with which the table of services is compared. It starts
// kube-proxy and configures haproxy. Feed stands in for the API server from which kube-proxy and
// veild's own client read the services.
//
// # What it promises
//
// KubeProxy.Start returns when kube-proxy reports that the rules of all services are written. It
// returns ErrLate if that exceeds its limit. The rules remain after kube-proxy is closed, until the
// namespace ends. kube-proxy has its defaults, except that it writes changes without a pause, does
// not change the machine's limits of connection tracking, and has IPv4 only. Its times come from
// its own metrics.
//
// A feed answers lists and watches of Services, EndpointSlices, one Node and an empty set of
// ServiceCIDRs. It answers every other request with 404.
//
// Services have TCP and IPv4, and endpoints on another node. Start reading at KubeProxy.Start in
// kubeproxy.go, then Feed.
package peer
