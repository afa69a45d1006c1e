package program_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/internal/commandline"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

func TestCommand(t *testing.T) {
	failed := func(err error) program.Run { return func(context.Context) error { return err } }

	for _, tc := range []struct {
		name          string
		args          []string
		run           program.Run
		refused       error
		status        int
		out, problems string
	}{
		{name: "well", run: failed(nil)},
		{name: "help", args: []string{"-h"}, out: "Usage: x"},
		{name: "unknown flag", args: []string{"--mts=1"}, status: 2,
			problems: "x: unknown flag: --mts: see x -h\n"},
		{name: "one dash", args: []string{"-rounds", "1"}, status: 2,
			problems: "x: -rounds: write --rounds: see x -h\n"},
		{name: "left over", args: []string{"all"}, status: 2,
			problems: `x: unexpected argument "all": see x -h` + "\n"},
		{name: "refused", refused: errors.New("--rounds 0: write at least 1"), status: 2,
			problems: "x: --rounds 0: write at least 1: see x -h\n"},
		{name: "failed", run: failed(errors.New("no machine")), status: 1,
			problems: "x: no machine\n"},
		{name: "failed and said so", run: failed(program.ErrFailed), status: 1},
		{name: "too long", status: 1, problems: "x: it did not end within 1ms\n",
			run: program.Within(time.Millisecond, func(ctx context.Context) error {
				<-ctx.Done()
				return context.Cause(ctx)
			})},
	} {
		t.Run(tc.name, func(t *testing.T) {
			flags := commandline.New("x")
			flags.Int("rounds", 1, "how often")
			cmd := program.Command("Do it", flags, "Usage: x\n",
				func() (program.Run, error) { return tc.run, tc.refused })
			var out, problems bytes.Buffer
			cmd.SetOut(&out)
			cmd.SetErr(&problems)

			var status program.Status
			if err := program.Execute(cmd, tc.args); err != nil && !errors.As(err, &status) {
				t.Fatal(err)
			}
			if int(status) != tc.status || !strings.Contains(out.String(), tc.out) ||
				problems.String() != tc.problems {
				t.Errorf("status %d, out %q, problems %q", status, &out, &problems)
			}
		})
	}
}

// The flags of a benchmark fill its choice, whose values are their defaults.
func TestBenchFillsItsChoice(t *testing.T) {
	c := suite.Choice{Rounds: 3, Limit: time.Hour, Parts: []string{"first", "second"}}
	b := program.NewBench("x", "Usage: x\n", &c)
	cmd := b.Command("Do it", func() (program.Run, error) {
		return func(context.Context) error { return nil }, nil
	})
	if err := program.Execute(cmd, []string{"--parts=second,first", "--seed", "7",
		"--out", "there"}); err != nil {
		t.Fatal(err)
	}
	if c.Rounds != 3 || c.Limit != time.Hour || c.Seed != 7 || c.Progress == nil ||
		strings.Join(c.Parts, " ") != "second first" || b.Out != "there" {
		t.Errorf("%+v, results go to %s", c, b.Out)
	}
}

func TestCheckMachines(t *testing.T) {
	for n, good := range map[int]bool{-1: false, 0: false, 1: true, program.MaxMachines: true,
		program.MaxMachines + 1: false} {
		if err := program.CheckMachines(n); (err == nil) != good {
			t.Errorf("%d machines: %v", n, err)
		}
	}
}

func TestFolder(t *testing.T) {
	write := func(t *testing.T, path string) {
		t.Helper()
		filetest.Write(t, path, []byte("x"), 0o600)
	}
	for _, tc := range []struct {
		name    string
		prepare func(t *testing.T, dir string)
		refused bool
	}{
		{"absent", func(*testing.T, string) {}, false},
		{"empty", func(t *testing.T, dir string) {
			errtest.Must(t, os.Mkdir(dir, 0o755))
		}, false},
		{"of an earlier run", func(t *testing.T, dir string) {
			errtest.Must(t, errtest.Of(program.Folder(dir)))
			write(t, filepath.Join(dir, "result.json"))
			errtest.Must(t, os.Mkdir(filepath.Join(dir, "machines"), 0o700))
			write(t, filepath.Join(dir, "machines", "disk"))
		}, false},
		{"somebody's", func(t *testing.T, dir string) {
			errtest.Must(t, os.Mkdir(dir, 0o755))
			write(t, filepath.Join(dir, "thesis.tex"))
		}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "out")
			tc.prepare(t, dir)
			path, err := program.Folder(dir)
			if tc.refused {
				if !errors.Is(err, program.ErrNotOurs) ||
					!strings.Contains(err.Error(), "thesis.tex") {
					t.Fatalf("error %v, want one that names thesis.tex", err)
				}
				errtest.Must(t, errtest.Of(os.Stat(filepath.Join(dir, "thesis.tex"))))
				return
			}

			errtest.Must(t, err)
			entries, err := os.ReadDir(path)
			errtest.Must(t, err)
			if len(entries) != 1 || !filepath.IsAbs(path) {
				t.Errorf("%s has %v, want the marker alone", path, entries)
			}
		})
	}
}
