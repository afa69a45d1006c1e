package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// command runs a program in the folder dir and returns its standard output. The program has the
// terminal, for passphrases.
func command(ctx context.Context, dir, name string, args ...string) (string, error) {
	sources, err := moduleSources()
	if err != nil {
		return "", err
	}

	c := exec.CommandContext(ctx, name, args...)
	c.Dir, c.Stdin, c.Stderr, c.Env = dir, os.Stdin, os.Stderr, environment(sources)
	// git removes what it has half made.
	c.Cancel, c.WaitDelay = func() error { return c.Process.Signal(syscall.SIGTERM) }, time.Minute
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w", strings.Join(append([]string{name}, args...), " "), err)
	}
	return string(out), nil
}

// environment returns the environment of this process without variables that change what git and
// Go's tools do, and with settings that turn off `go env -w` and other toolchains. sources are the
// lines of readModuleSources.
func environment(sources []string) []string {
	var kept []string
	for _, line := range os.Environ() {
		if !strings.HasPrefix(line, "GO") && !strings.HasPrefix(line, "CGO_") &&
			!strings.HasPrefix(line, "GIT_") {
			kept = append(kept, line)
		}
	}
	kept = append(kept, sources...)
	return append(kept, "GOENV=off", "GOFLAGS=-trimpath", "GOTOOLCHAIN=local", "GOWORK=off",
		"GIT_NO_REPLACE_OBJECTS=1")
}

// sourceSettings are the settings of Go's tools that select where modules come from and where files
// are kept. go.sum has the sum of each module, which Go compares when it fetches the module, so a
// source cannot change what is built. Files that are changed in GOMODCACHE or GOCACHE afterwards
// can.
var sourceSettings = []string{"GOAUTH", "GOCACHE", "GOINSECURE", "GOMODCACHE", "GONOPROXY",
	"GONOSUMDB", "GOPATH", "GOPRIVATE", "GOPROXY", "GOSUMDB", "GOTMPDIR", "GOVCS"}

var moduleSources = sync.OnceValues(readModuleSources)

// readModuleSources returns the user's sourceSettings, which stand in the environment or in the
// file of `go env -w`, as lines of an environment.
func readModuleSources() (lines []string, err error) {
	out, err := exec.Command("go", append([]string{"env", "-json"}, sourceSettings...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	var values map[string]string
	if err := json.Unmarshal(out, &values); err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	for _, name := range sourceSettings {
		lines = append(lines, name+"="+values[name])
	}
	return lines, nil
}
