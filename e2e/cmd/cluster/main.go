package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/kubeveil/kubeveil/e2e/vm"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	var o vm.Options
	flag.IntVar(&o.Nodes, "nodes", 2, "machines")
	flag.BoolVar(&o.Bare, "bare", false, "no kubernetes")
	flag.BoolVar(&o.NoVeil, "no-veil", false, "no kubeveil")
	flag.StringVar(&o.Dir, "dir", "", "artefacts")
	flag.Parse()
	o.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	c, err := vm.New(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	cmd := c.Machines[0].SSH(ctx)
	fmt.Println(cmd.Args)
	<-ctx.Done()
	res, err := c.Close()
	fmt.Println(res.Kinds, err)
	fmt.Println(res.Err())
}
