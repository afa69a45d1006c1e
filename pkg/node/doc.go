// Package node has the verbs that work on a node without a daemon. Check and
// CheckFiles report what veild would refuse. Notes and Describe describe the node.
// Close closes a node before its network comes up. Cleanup removes Kubeveil's
// network.
//
// Check, CheckFiles, Notes and Describe change nothing. Close opens nothing that is
// closed. Cleanup refuses while a veild runs, continues after an error as far as that
// leaks nothing, and keeps the objects of storage.
//
// The agent begins with the same checks and with the settings that Closed returns. Start reading at
// cleanup.go: the order of its steps ensures that nothing leaves in clear.
package node
