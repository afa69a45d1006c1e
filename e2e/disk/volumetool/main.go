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
  provision NAME BYTES                     make a volume
  stage NAME [FOLDER]                      open it and mount its file system at FOLDER; without
                                           FOLDER it is a device
  unstage NAME [FOLDER]
  delete NAME
  rewrap NAME TIMES PAUSE                  make a new key-encryption key and wrap the volume's key
                                           by it, TIMES times
  place FILE                               print where the file's content is on its device
  reference device DEVICE                  open the same device by stock cryptsetup
  reference new|existing DEVICE FOLDER     measure cryptsetup, mkfs.ext4 and mount for the same work

The output is one JSON object. Status 0: it holds the result, refusals included.

Flags:
`

// limit bounds a run that hangs.
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
		"`devices` that volumes may have, with commas between; none: volumes are in files")
	flags.StringVar(&s.tuning, "tuning", string(dmcrypt.Throughput),
		"`class` of new volumes: throughput or latency")
	flags.IntVar(&s.key, "key", 0, "`number` of the one key-encryption key at hand, the first "+
		"being 1; 0: all, the newest wraps")
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
