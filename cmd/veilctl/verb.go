package main

import (
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/agent"
	"github.com/kubeveil/kubeveil/pkg/config"
)

// command adds the flags of a verb and returns what runs.
type command func(fs *flag.FlagSet) func(c call) error

// verb is one verb: how it is called, explained and run.
type verb struct {
	// A name of two words is a verb of a thing: veilctl volume list.
	name string
	// args are what is named beside flags, for its usage; empty when nothing may be.
	args string
	// short is its line in the overview; about follows the usage line of its own -h; examples are
	// whole lines.
	short, about, examples string
	// ownOutput is of verbs whose -o is not "table or json".
	ownOutput bool
	register  command
}

// verbs are all there are, in the order of the overview: those that ask this node first.
func verbs() []group {
	return []group{
		{"This node, or a cluster", []verb{statusVerb}},
		{"This node", []verb{
			{name: "peers", short: "other nodes: state, endpoint, handshake, bytes",
				register: onNode(peers),
				examples: "veilctl peers -o json | jq '.[] | select(.state != \"up\")'"},
			{name: "mtu", short: "where the MTU of pods comes from, number by number",
				register: onNode(mtu), examples: "veilctl mtu"},
			{name: "guard", short: "where the guard is attached and what it dropped, by reason",
				register: onNode(guardDrops), examples: "veilctl guard"},
			leakcheckVerb,
			{name: "host", short: "links, addresses, rules, routes, nftables as the kernel has " +
				"them, for a bug report", register: host, ownOutput: true,
				about:    "It needs no veild, changes nothing, and shows no key.",
				examples: "veilctl host > host.txt"},
			{name: "cleanup", short: "take everything of Kubeveil's network from this node",
				register: cleanup,
				about: "Stop veild and veil-wg before: they would put it back. It may be " +
					"repeated. What storage has stays.",
				examples: "veilctl cleanup"},
		}},
		{"Services of this node, with serviceProxy ebpf", serviceVerbs},
		{"A cluster, by a kubeconfig", []verb{installVerb, connectivityVerb, benchVerb,
			sysdumpVerb}},
		{"Encrypted volumes of a cluster, by a kubeconfig", volumeVerbs},
		{"", []verb{{name: "version", short: "which veilctl this is", register: showVersion,
			examples: "veilctl version"}}},
	}
}

// group is verbs under a heading of the overview.
type group struct {
	heading string
	verbs   []verb
}

// choose finds the verb that arguments begin with, and returns the rest.
func choose(args []string) (v verb, rest []string, ok bool) {
	if len(args) > 1 {
		if v, ok = findVerb(args[0] + " " + args[1]); ok {
			return v, args[2:], true
		}
	}
	v, ok = findVerb(args[0])
	return v, args[1:], ok
}

// things are the second words of verbs of a thing.
func things(name string) []string {
	var out []string
	for _, g := range verbs() {
		for _, v := range g.verbs {
			if second, ok := strings.CutPrefix(v.name, name+" "); ok {
				out = append(out, second)
			}
		}
	}
	return out
}

// findVerb finds a verb by its name.
func findVerb(name string) (verb, bool) {
	for _, g := range verbs() {
		for _, v := range g.verbs {
			if v.name == name {
				return v, true
			}
		}
	}
	return verb{}, false
}

// overview is what `veilctl -h` says.
func overview(w io.Writer) {
	fmt.Fprint(w, "veilctl looks at Kubeveil: on the node it runs on, and in a cluster that a "+
		"kubeconfig points to.\n\nUsage: veilctl VERB [flags]\n")
	for _, g := range verbs() {
		fmt.Fprintln(w)
		if g.heading != "" {
			fmt.Fprintln(w, g.heading+":")
		}
		for _, v := range g.verbs {
			fmt.Fprintf(w, "  %-16s%s\n", v.name, v.short)
		}
	}
	fmt.Fprint(w, `
veilctl VERB -h explains one, with its flags and examples.

Exit status: 0 all is well, 1 something is wrong with the node or the cluster, or the call failed,
2 the command line is wrong, 3 veild does not answer.
`)
}

// usage is what `veilctl VERB -h` says.
func (v verb) usage(fs *flag.FlagSet) func() {
	return func() {
		w := fs.Output()
		fmt.Fprintf(w, "veilctl %s: %s\n\nUsage: veilctl %s [flags]\n", v.name, v.short,
			strings.TrimSpace(v.name+" "+v.args))
		if v.about != "" {
			fmt.Fprintf(w, "\n%s\n", strings.TrimSpace(v.about))
		}
		fmt.Fprintf(w, "\nExamples:\n  %s\n\nFlags:\n",
			strings.ReplaceAll(strings.TrimSpace(v.examples), "\n", "\n  "))
		fs.PrintDefaults()
	}
}

// onNode is a verb that asks the veild of this node and has no flag of its own.
func onNode(run func(c call, socket string) error) command {
	return func(fs *flag.FlagSet) func(call) error {
		socket := socketFlag(fs)
		return func(c call) error { return run(c, *socket) }
	}
}

func host(fs *flag.FlagSet) func(call) error {
	confDir := fs.String("cni-conf-dir", config.CNIConfDir, "`directory` of CNI configurations")
	return func(c call) error { return agent.Describe(c.out, *confDir) }
}

func socketFlag(fs *flag.FlagSet) *string {
	return fs.String("socket", config.AdminSocket, "veild's `socket`")
}
