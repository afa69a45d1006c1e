package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// addHost adds programs of this machine to files, below usr/bin, and their libraries and loader,
// each at its path on this machine. On machines with the same Debian release, these files are
// equal.
func addHost(ctx context.Context, files map[string][]byte, arch string, programs []string) error {
	if len(programs) > 0 && arch != runtime.GOARCH {
		return fmt.Errorf("--arch %s: the image holds %v of this machine, which is %s", arch,
			programs, runtime.GOARCH)
	}

	for _, program := range programs {
		path, err := exec.LookPath(program)
		if err != nil {
			return fmt.Errorf("%w: run `make deps`, or install it", err)
		}
		out, err := exec.CommandContext(ctx, "ldd", path).Output()
		if err != nil {
			return fmt.Errorf("libraries of %s: %w", path, err)
		}
		libraries, err := parseLdd(string(out))
		if err != nil {
			return fmt.Errorf("libraries of %s: %w", path, err)
		}

		if files["usr/bin/"+program], err = os.ReadFile(path); err != nil {
			return err
		}

		for _, l := range libraries {
			if files[strings.TrimPrefix(l, "/")], err = os.ReadFile(l); err != nil {
				return err
			}
		}
	}

	return nil
}

// addHostFiles adds the other files that the host programs of the recipe need, and the licences of
// their packages.
func addHostFiles(files map[string][]byte, r recipe) error {
	paths := slices.Clone(r.hostFiles)
	for _, p := range r.debian {
		paths = append(paths, filepath.Join("/usr/share/doc", p, "copyright"))
	}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("%w: run `make deps`, or install what it is of", err)
		}
		files[strings.TrimPrefix(path, "/")] = b
	}
	return nil
}

// parseLdd returns the files in the output of ldd(1), whose lines are "name => file (address)", or
// "file (address)" for the loader. The line of the kernel's vDSO has no file.
func parseLdd(out string) ([]string, error) {
	var files []string
	for line := range strings.Lines(out) {
		if strings.Contains(line, "not found") {
			return nil, errors.New(strings.TrimSpace(line))
		}
		for _, word := range strings.Fields(line) {
			if filepath.IsAbs(word) {
				files = append(files, filepath.Clean(word))
			}
		}
	}
	return files, nil
}
