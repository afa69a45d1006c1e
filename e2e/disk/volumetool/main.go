package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/e2e/disk/answer"
)

// limit bounds a run that hangs.
const limit = 5 * time.Minute

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "volumetool:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if err := keyring.Harden(); err != nil {
		return err
	}

	var s settings
	flags := flag.NewFlagSet("volumetool", flag.ContinueOnError)
	flags.StringVar(&s.dir, "dir", "/var/lib/volumetool",
		"`folder` for states, keys and files of volumes")
	flags.StringVar(&s.disks, "disks", "",
		"`devices` that volumes may have, with commas between; none: volumes are in files")
	flags.StringVar(&s.tuning, "tuning", string(crypt.Throughput),
		"`class` of new volumes: throughput or latency")
	flags.IntVar(&s.key, "key", 0, "`number` of the one key-encryption key at hand, the first "+
		"being 1; 0: all, the newest wraps")
	if err := flags.Parse(args); err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	n, err := newNode(s)
	if err != nil {
		return err
	}

	a, err := n.do(ctx, flags.Args())
	if err != nil {
		a.Error = err.Error()
		var refused *crypt.RefusedError
		switch {
		case errors.As(err, &refused):
			a.Kind = string(refused.Kind)
		case errors.Is(err, keyring.ErrWrongKey):
			a.Kind = answer.WrongKey
		}
	}

	return json.NewEncoder(os.Stdout).Encode(a)
}
