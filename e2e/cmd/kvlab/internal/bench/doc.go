// Package bench has the verbs of kvlab bench. Each fills the options of a suite from its flags,
// runs the suite, and writes result.json, report.html and report.md into --out. Exit status 1: a
// gate was missed, or something could not be measured.
//
// The suites of e2e/bench measure in network namespaces of this machine, and storage and cluster on
// virtual machines. `veilctl bench` is the suite of cluster on any cluster.
//
// Start reading at Commands.
package bench

import "github.com/spf13/cobra"

// Commands returns the verbs.
func Commands() []*cobra.Command {
	return []*cobra.Command{apiCommand(), clusterCommand(), engineCommand(), labCommand(),
		policyCommand(), scaleCommand(), serviceCommand(), simulatorCommand(), siteCommand(), storageCommand()}
}
