// Package healthcheck answers the health checks of load balancers as kube-proxy does.
//
// At the healthCheckNodePort of a service it answers 200 if the service has ready endpoints on this
// node, else 503 (KEP-27). At the node's address it answers for services that every node serves:
// 200 while the table of services is up to date, else 503.
//
// If listening on a port fails, Problems returns the reason, and Update tries again. The package
// depends neither on Kubernetes nor on BPF. Start reading at Ports.
package healthcheck
