// Package verb frames the verbs of veilctl: their help, flags, completion, output, errors and exit
// statuses, and the requests that they send to veild.
//
// It promises that all verbs look alike. A verb gets a Call and returns an error. ErrUsage,
// ErrWrong and ErrNoDaemon select the exit status. It knows no verb itself.
//
// OnNode runs a verb on other nodes as well, by veilctl in the pod of each veild. What such a node
// prints is bounded in length and time, and has no control characters: the node may have been taken
// over.
//
// Start reading at New, Reporting and OnNode.
package verb
