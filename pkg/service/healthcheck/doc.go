// Package healthcheck answers the health checks of load balancers as kube-proxy does.
//
// At the healthCheckNodePort of a service it answers 200 if the service has ready endpoints on this
// node, else 503 (KEP-27). At the node's address it answers for services that every node serves:
// 200 while the table of services is up to date, else 503.
//
// A port that cannot be listened on is a problem that Problems returns, and Update tries it again.
// The package knows neither Kubernetes nor BPF. Start reading at Ports.
package healthcheck
