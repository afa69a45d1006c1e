// Package verb frames the verbs of veilctl: their help, flags, completion, output, errors and exit
// statuses, and the requests that they send to veild.
//
// It gives all verbs the same form. A verb gets a Call and returns an error. ErrUsage, ErrWrong and
// ErrNoDaemon select the exit status. The package does not depend on any verb.
//
// OnNode also runs a verb on other nodes, by running veilctl in the pod of each veild. Because such
// a node may have been taken over, its output is bounded in length and time, and control characters
// are replaced.
//
// Start reading at New, Reporting and OnNode.
package verb
