// Package node has the verbs that work on a node without a daemon: Check and
// CheckFiles say what veild would refuse, Notes and Describe say what there is,
// Close closes a node before its network comes up, and Cleanup takes Kubeveil's
// network away.
//
// Check, CheckFiles, Notes and Describe change nothing. Close opens nothing that is
// closed. Cleanup refuses while a veild runs, goes on after an error as far as that
// leaks nothing, and leaves what storage has.
//
// The agent begins with the same checks and with what Closed returns. Start reading
// at cleanup.go: its order is the proof that nothing leaves in clear.
package node
