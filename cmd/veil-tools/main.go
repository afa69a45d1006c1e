// Veil-tools runs inside pods and nodes for suites, benchmarks and veilctl: servers and clients of
// test traffic, the reader of uplinks, and the two ends of a measurement. The image kubeveil-tools
// ships it.
//
// Start reading at packages lab and bench in internal.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/kubeveil/kubeveil/cmd/veil-tools/internal/bench"
	"github.com/kubeveil/kubeveil/cmd/veil-tools/internal/lab"
	"github.com/kubeveil/kubeveil/cmd/veil-tools/internal/verb"
)

func main() { os.Exit(run(os.Args[1:], verbs())) }

// verbs returns all verbs, by name.
func verbs() map[string]verb.Verb {
	all := maps.Clone(lab.Verbs)
	maps.Copy(all, bench.Verbs)
	return all
}

// run runs the verb that the arguments name and returns the exit status.
func run(args []string, verbs map[string]verb.Verb) int {
	if len(args) > 0 && (args[0] == "-h" || args[0] == "--help" || args[0] == "help") {
		usage(os.Stdout, verbs)
		return 0
	}
	if len(args) == 0 || verbs[args[0]].Run == nil {
		usage(os.Stderr, verbs)
		return 2
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	err := verbs[args[0]].Run(ctx, args[1:])

	switch {
	case errors.Is(err, flag.ErrHelp):
		return 2
	case err != nil:
		fmt.Fprintf(os.Stderr, "veil-tools %s: %v\n", args[0], err)
		return 1
	}
	return 0
}

func usage(w io.Writer, verbs map[string]verb.Verb) {
	fmt.Fprint(w, "usage: veil-tools VERB [flags]; -h after a verb lists its flags\n\n")
	for _, name := range slices.Sorted(maps.Keys(verbs)) {
		fmt.Fprintf(w, "  %-9s %s\n", name, verbs[name].Short)
	}
}
