// Package services holds the cases of services on nodes, in the lab of namespaces (e2e/lab): the
// service table with both host routings, beside kube-proxy, while veild is dead and while an API
// server is. It has tests only.
//
// It is larger than most packages: its scenarios share the services and the clients that count who
// answers.
//
// Start reading at TestServices; ../../README.md says which promise each test holds.
package services
