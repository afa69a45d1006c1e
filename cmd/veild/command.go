package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/kubeveil/kubeveil/internal/commandline"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/node"
)

func closeNode(flags *config.Flags) error {
	cfg, err := flags.Load()
	if err != nil {
		return err
	}
	log, err := commandline.NewLogger(os.Stderr, cfg.LogLevel, cfg.LogFormat)
	if err != nil {
		return err
	}
	return node.Close(cfg, log)
}

// check checks configuration and machine. It prints the notes of node.Notes to out, and returns all
// errors.
func check(out io.Writer, flags *config.Flags) error {
	cfg, err := flags.Load()
	if err == nil { // with an invalid configuration, these may be the wrong files
		err = node.CheckFiles(cfg)
	}
	err = errors.Join(err, node.Check(cfg))
	notes, underlayErr := node.Notes(cfg)
	for _, n := range notes {
		fmt.Fprintln(out, n)
	}
	if err := errors.Join(err, underlayErr); err != nil {
		return err
	}
	fmt.Fprintln(out, "veild can run with this configuration on this machine")
	return nil
}

func cleanup(ctx context.Context, flags *config.Flags) error {
	cfg, err := flags.Load()
	if err != nil {
		// Continue with an invalid configuration, because Kubeveil's objects have fixed names.
		fmt.Fprintf(os.Stderr,
			"veild: the configuration cannot be used, cleaning up with the defaults: %v\n", err)
		cfg = config.Default()
	}
	log, err := commandline.NewLogger(os.Stderr, cfg.LogLevel, cfg.LogFormat)
	if err != nil {
		return err
	}
	n := 0
	err = node.Cleanup(ctx, cfg, log, func(what string) {
		n++
		fmt.Println("removed", what)
	})
	if err != nil {
		return err
	}
	fmt.Printf("%d objects removed; nothing of Kubeveil's network is left on this node\n", n)
	return nil
}
