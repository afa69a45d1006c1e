// Package services holds the cases of services on nodes, in the lab of namespaces (e2e/lab). They
// cover the service table with both host routings, beside kube-proxy, while veild is dead and while
// an API server is dead. It has tests only.
//
// It is larger than most packages, because its scenarios share the services and the clients that
// count the answers of each server.
//
// Start reading at TestServices; ../../README.md lists which promise each test holds.
package services
