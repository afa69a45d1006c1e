// Package bench has the verbs that benchmarks run in pods: the measuring tools, and the ends of the
// measured flows.
//
// It promises to change the node of a privileged pod only by links, routes and namespaces of its
// own, and to remove them when the session ends.
//
// Start reading at Verbs, then serve in session.go.
package bench

import "github.com/kubeveil/kubeveil/cmd/veil-tools/internal/verb"

// Verbs returns the package's verbs, keyed by name.
func Verbs() verb.Verbs {
	return verb.Verbs{
		"disk-load": {Short: "Fill, read or write a file of a volume and report the rate",
			Run: diskLoad},
		"node-wait": {Short: "Wait in a node's privileged pod, and clean up at the end",
			Run: agent},
		"pod-serve": {Short: "Serve iperf3 and round trips in a measured pod", Run: pod},
		"session-serve": {Short: "Serve pkg/bench/session on standard input and output",
			Run: serve},
		"tcp-first": {Short: "Connect to a session again and again until it answers", Run: first},
	}
}
