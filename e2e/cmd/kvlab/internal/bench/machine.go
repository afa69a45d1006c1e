package bench

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/e2e/vm"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

const (
	// onMachineFolder is the machine's folder for copied files. The results are below it.
	onMachineFolder, onMachineResults = "/root/bench", "results"
	// saving bounds the time in which an interrupted run writes its measurements.
	saving = time.Minute
)

// machineRun is a benchmark of this program on a virtual machine.
type machineRun struct {
	// verb is a verb of kvlab bench. flags are its flags without those that choice has.
	verb  string
	flags []string
	// choice is what all benchmarks have.
	choice suite.Choice
	// before is a command of the shell that runs on the machine first.
	before string
	// equip copies what the run needs to the machine, without this program.
	equip func(ctx context.Context, m *vm.Machine) error
}

// onMachine measures on a virtual machine that it creates and removes. The results are in the same
// folder, with the machine's logs beside them.
func onMachine(ctx context.Context, out string, r machineRun) (err error) {
	folder, err := program.Folder(out)
	if err != nil {
		return err
	}
	log, closeLog, err := program.Log(folder, "bench-"+r.verb+".log")
	if err != nil {
		return err
	}
	defer closeLog()

	r.choice.Progress("results go to %s; the machine takes two minutes to begin with", folder)
	c, err := vm.New(ctx, vm.ClusterConfig{Nodes: 1, Bare: true, Dir: filepath.Join(folder, "machine"),
		Log: log})
	if err != nil {
		return err
	}
	defer func() {
		_, end := c.Close()
		err = errors.Join(err, end)
	}()

	m := c.Machines[0]
	if err := putSelf(ctx, m); err != nil {
		return err
	}
	if err := r.equip(ctx, m); err != nil {
		return err
	}

	cmd := m.SSH(ctx, fmt.Sprintf("%[1]s && cd %[2]s && PATH=%[2]s/bin:$PATH "+
		"exec ./kvlab bench %[3]s %[4]s", r.before, onMachineFolder, r.verb,
		strings.Join(r.commandLine(), " ")))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	later := context.WithoutCancel(ctx)
	cmd.Cancel = func() error { return m.SSH(later, "pkill -INT -x -o kvlab").Run() }
	cmd.WaitDelay = saving
	ended := cmd.Run()
	if err := fetch(later, m, folder); err != nil {
		return errors.Join(ended, err)
	}
	var status *exec.ExitError
	if errors.As(ended, &status) && context.Cause(ctx) == nil {
		return program.ErrFailed
	}
	return ended
}

// commandLine returns the flags of the run on the machine.
func (r machineRun) commandLine() []string {
	return append([]string{"--out=" + onMachineResults, fmt.Sprintf("--rounds=%d", r.choice.Rounds),
		fmt.Sprintf("--seed=%d", r.choice.Seed), fmt.Sprintf("--limit=%v", r.choice.Limit),
		"--parts=" + strings.Join(r.choice.Parts, ",")}, r.flags...)
}

// putSelf copies this program to a machine, into a folder that looks like the root of a tree.
func putSelf(ctx context.Context, m *vm.Machine) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := m.Put(ctx, onMachineFolder+"/go.mod", 0o644,
		strings.NewReader("module bench\n")); err != nil {
		return err
	}
	return m.PutFile(ctx, onMachineFolder+"/kvlab", self)
}

// putPeers copies the programs of this machine that bench service needs and the image lacks, with
// their libraries: both have the same release.
func putPeers(ctx context.Context, m *vm.Machine, haproxy, kubeProxy string) error {
	if err := m.PutFile(ctx, onMachineFolder+"/out/bin/kube-proxy", kubeProxy); err != nil {
		return err
	}

	for name, at := range map[string]string{"wrk": "bin/wrk", "sockperf": "bin/sockperf",
		haproxy: "out/tools/haproxy"} {
		path, err := exec.LookPath(name)
		if err != nil {
			return fmt.Errorf("for the machine: %w", err)
		}
		ldd, err := exec.CommandContext(ctx, "ldd", path).Output()
		if err != nil {
			return fmt.Errorf("libraries of %s: %w", path, err)
		}
		for _, file := range append(libraries(string(ldd)), path) {
			if err := m.PutFile(ctx, onMachineFolder+"/lib/"+filepath.Base(file),
				file); err != nil {
				return err
			}
		}
		wrapper := fmt.Sprintf("#!/bin/sh\nLD_LIBRARY_PATH=%[1]s/lib exec %[1]s/lib/%[2]s \"$@\"\n",
			onMachineFolder, filepath.Base(path))
		if err := m.Put(ctx, onMachineFolder+"/"+at, 0o755,
			strings.NewReader(wrapper)); err != nil {
			return err
		}
	}

	return nil
}

// library is a line of ldd(1) that names a file.
var library = regexp.MustCompile(`(?m)^\s*(\S+) => (/\S+)`)

// libraries returns the files that a program needs, without the files of the C library, which each
// machine has.
func libraries(ldd string) []string {
	var out []string
	for _, m := range library.FindAllStringSubmatch(ldd, -1) {
		switch base, _, _ := strings.Cut(m[1], "."); base {
		case "libc", "libm", "libdl", "libpthread", "librt", "libresolv":
		default:
			out = append(out, m[2])
		}
	}
	return out
}

// fetch takes the results of a run from a machine into a folder.
func fetch(ctx context.Context, m *vm.Machine, folder string) error {
	ctx, cancel := context.WithTimeout(ctx, saving)
	defer cancel()
	b, err := m.Exec(ctx, fmt.Sprintf("tar -C %s/%s -cf - .", onMachineFolder, onMachineResults))
	if err != nil {
		return err
	}
	return unpack(b, folder)
}

// unpack writes the plain files of an archive into a folder; what is beneath folders in it is left
// out.
func unpack(archive []byte, folder string) error {
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("results of the machine: %w", err)
		}
		name := filepath.Clean(h.Name)
		if h.Typeflag != tar.TypeReg || name != filepath.Base(name) {
			continue
		}
		b, err := io.ReadAll(r)
		if err != nil {
			return fmt.Errorf("results of the machine: %w", err)
		}
		if err := os.WriteFile(filepath.Join(folder, name), b, 0o644); err != nil {
			return err
		}
	}
}
