package node

import "github.com/kubeveil/kubeveil/cmd/veil-tools/internal/verb"

// Verbs returns the package's verbs, keyed by name.
func Verbs() verb.Verbs {
	printing := verb.Printing
	return verb.Verbs{
		"cni-call":   printing(cni, "Call CNI plugins as a container runtime does"),
		"link-watch": printing(watch, "Read the uplinks of a node and report plaintext"),
		"node-hold":  printing(holder, "Hold the namespaces of a lab's node; the lab starts it"),
		"pause":      printing(pause, "Wait for a signal"),
	}
}

// flagsOf returns the flags of the verb called name.
func flagsOf(name string) verb.Set { return verb.NewSet(name, Verbs()) }
