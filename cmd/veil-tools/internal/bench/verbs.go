// Package bench has the verbs that benchmarks run in pods: the tools of measurement, and the ends
// of the measured flows.
//
// It promises to change the node of a privileged pod only by links and namespaces of names of its
// own, and to remove them when the session ends.
//
// Start reading at Verbs, then serve in session.go.
package bench

import "github.com/kubeveil/kubeveil/cmd/veil-tools/internal/verb"

// Verbs are the package's verbs, by name.
var Verbs = map[string]verb.Verb{
	"agent":   {Short: "run in a node's privileged pod: wait, and clean up at the end", Run: agent},
	"disk":    {Short: "fill, read or write a file of a volume and report the rate", Run: diskLoad},
	"first":   {Short: "connect to a session that awaits it until it answers", Run: first},
	"pod":     {Short: "serve iperf3 and round trips in a pod that is measured", Run: pod},
	"session": {Short: "serve pkg/bench/session on standard input and output", Run: serve},
}
