// Package lane makes lanes, each of which is a node with two pods between which connections are
// measured. A lane has no filter, Kubeveil's table of policies, or a program behind NFQUEUE.
//
// Run measures connections in all lanes. New returns an error if a policy is not in force in its
// lane, or a lane without one drops connections. Start reading at New, then Run.
package lane
