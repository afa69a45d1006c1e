// Benchtool is what the performance suite runs in pods. It is never shipped with Kubeveil.
//
//	benchtool pod        the process of a pod that is measured: iperf3 and the round-trip server
//	benchtool agent      the process of a node's privileged pod: waits, and cleans up at its end
//	benchtool session    serves package remote on its standard input and output (by exec, in either pod)
//	benchtool first      connects to a session that awaits it, again and again until it answers
//	benchtool disk       fills a file of a volume, or reads or writes it at random places, and says how fast
//
// Start reading at sessions in session.go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

var programs = map[string]func(ctx context.Context, args []string) error{
	"pod":     pod,
	"agent":   agent,
	"session": session,
	"first":   first,
	"disk":    diskLoad,
}

func main() {
	if len(os.Args) < 2 || programs[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: benchtool pod|agent|session|first|disk [flags]")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	err := programs[os.Args[1]](ctx, os.Args[2:])
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "benchtool %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}
