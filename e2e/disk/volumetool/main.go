package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/e2e/disk/answer"
	"github.com/kubeveil/kubeveil/internal/commandline"
)

const usage = `Work with volumes on a machine, for demonstrations and benchmarks.

Usage: volumetool [flags] VERB [ARGUMENTS]

Verbs:
  provision NAME BYTES                     provision a volume
  stage NAME [FOLDER]                      open the volume and mount its file system at FOLDER;
                                           without FOLDER leave it a raw device
  unstage NAME [FOLDER]                    unmount and close the volume
  delete NAME                              delete the volume
  rewrap NAME TIMES PAUSE                  make a new key-encryption key and rewrap the volume's
                                           key with it, TIMES times
  place FILE                               print the offset of the file's content on its device
  reference device DEVICE                  format and open the device with stock cryptsetup
  reference new|existing DEVICE FOLDER     do the work of stage with stock programs, and measure it

The output is one JSON object. With exit status 0 it has the result, also of a refusal.

Flags:
`

// limit is the time limit of a run.
const limit = 5 * time.Minute

func main() {
	if err := run(os.Args[1:]); err != nil && !errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "volumetool:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if err := keyring.Harden(); err != nil {
		return err
	}

	var s settings
	flags := commandline.New("volumetool")
	flags.StringVar(&s.dir, "dir", "/var/lib/volumetool",
		"`folder` for states, keys and files of volumes")
	flags.StringVar(&s.disks, "disks", "",
		"`devices` for volumes, separated by commas; empty: keep volumes in files")
	flags.StringVar(&s.tuning, "tuning", string(dmcrypt.Throughput),
		"`tuning` of new volumes: throughput or latency")
	flags.IntVar(&s.key, "key", 0, "`number` of the only key-encryption key to use, counted "+
		"from 1; 0: all, and the newest wraps")
	if err := commandline.Parse(flags, usage, args, os.Stdout); err != nil {
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
