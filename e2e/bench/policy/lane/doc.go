// Package lane has nodes of their own with two pods, between which connections are measured:
// without a judge, with Kubeveil's table of policies, and with a program behind NFQUEUE.
//
// A lane that does not do what its name says is refused. Start reading at New.
package lane
