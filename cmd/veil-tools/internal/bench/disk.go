package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/kubeveil/kubeveil/cmd/veil-tools/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/bench/disk"
)

// diskLoad fills a file, or reads or writes it at random offsets for --for. After reads or writes
// it prints a disk.Result as JSON.
func diskLoad(ctx context.Context, args []string) error {
	var j disk.Job
	flags := verb.Flags("disk-load")
	flags.StringVar(&j.File, "file", "", "`file` on the volume")
	flags.Int64Var(&j.Size, "size", 1<<30, "size of the file in `bytes`")
	flags.Int64Var(&j.Block, "block", 4096, "size of a request in `bytes`")
	flags.IntVar(&j.Depth, "depth", 1, "number of `requests` under way at the same time")
	flags.DurationVar(&j.For, "for", 10*time.Second, "`duration` of reads or writes")
	rw := flags.String("rw", "", "`work`: fill, randread or randwrite")
	if err := Verbs().Parse(flags, "", args); err != nil {
		return err
	}
	switch {
	case j.File == "":
		return errors.New("--file is missing: name a file on the volume")
	case *rw == "fill":
		return disk.Fill(ctx, j.File, j.Size)
	case *rw != "randread" && *rw != "randwrite":
		return fmt.Errorf("--rw %s: want fill, randread or randwrite", *rw)
	}
	j.Write = *rw == "randwrite"
	r, err := disk.Run(ctx, j)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}
