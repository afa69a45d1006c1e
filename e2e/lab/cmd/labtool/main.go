// Labtool is the program that the namespace lab runs inside nodes and pods: the
// process that holds a node's namespaces, the traffic of tests and the runtime's
// side of CNI. It is for the lab only and is never shipped.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"sort"
	"strings"
	"syscall"
)

// command runs one subcommand until it is done or ctx ends; what it returns is
// printed as one line of JSON.
type command func(ctx context.Context, args []string) (any, error)

var commands = map[string]command{
	"holder":  holder,
	"echo":    echo,
	"send":    send,
	"hold":    hold,
	"flow":    flow,
	"webhook": webhook,
	"ask":     ask,
	"meet":    meet,
	"source":  source,
	"sink":    sink,
	"raw":     raw,
	"cni":     cni,
	"pause":   pause,
	"watch":   watch,
	"knock":   knock,
	"obey":    obey,
	"name":    name,
	"census":  census,
	"keep":    keep,
	"api":     api,
}

func main() {
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		names := make([]string, 0, len(commands))
		for name := range commands {
			names = append(names, name)
		}
		sort.Strings(names)
		fmt.Fprintf(os.Stderr, "usage: labtool %s [flags]\n", strings.Join(names, "|"))
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	out, err := commands[os.Args[1]](ctx, os.Args[2:])
	if out != nil {
		_ = json.NewEncoder(os.Stdout).Encode(out)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "labtool %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}
