// Package verb frames the verbs of veilctl: their help, flags, completion, output, errors and exit
// statuses, and the requests that they send to veild.
//
// It promises that all verbs look alike. A verb gets a Call and returns an error. ErrUsage,
// ErrWrong and ErrNoDaemon select the exit status. It knows no verb itself.
//
// Start reading at New and Reporting.
package verb
