// Veil-tools runs inside pods and nodes for suites, benchmarks and veilctl: servers and clients of
// test traffic, the reader of uplinks, and the two ends of a measurement. The image kubeveil-tools
// ships it.
//
// Start reading at package verb in internal, then at the package of the verb.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/kubeveil/kubeveil/cmd/veil-tools/internal/api"
	"github.com/kubeveil/kubeveil/cmd/veil-tools/internal/bench"
	"github.com/kubeveil/kubeveil/cmd/veil-tools/internal/lab"
	"github.com/kubeveil/kubeveil/cmd/veil-tools/internal/node"
	"github.com/kubeveil/kubeveil/cmd/veil-tools/internal/verb"
)

func main() { os.Exit(run(os.Args[1:], verbs())) }

// verbs returns all verbs, keyed by name.
func verbs() verb.Verbs {
	all := verb.Verbs{}
	for _, some := range []verb.Verbs{api.Verbs(), bench.Verbs(), lab.Verbs(), node.Verbs()} {
		maps.Copy(all, some)
	}
	return all
}

// run runs the verb that the arguments name and returns the exit status.
func run(args []string, verbs verb.Verbs) int {
	switch {
	case len(args) == 0:
		usage(os.Stderr, verbs)
		return 2
	case args[0] == "-h" || args[0] == "--help" || args[0] == "help":
		usage(os.Stdout, verbs)
		return 0
	case verbs[args[0]].Run == nil:
		fmt.Fprintf(os.Stderr, "veil-tools: unknown verb %q: see veil-tools -h\n", args[0])
		return 2
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	err := verbs[args[0]].Run(ctx, args[1:])

	if err != nil && !errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "veil-tools %s: %v\n", args[0], err)
		return 1
	}
	return 0
}

func usage(w io.Writer, verbs verb.Verbs) {
	fmt.Fprint(w, "Run one tool of suites, benchmarks and veilctl.\n\n"+
		"Usage: veil-tools VERB [flags]; -h after a verb lists its flags\n\nVerbs:\n")
	for _, name := range slices.Sorted(maps.Keys(verbs)) {
		fmt.Fprintf(w, "  %-13s  %s\n", name, verbs[name].Short)
	}
}
