package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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

// kept are the variables of the user's environment that programs get: where they find files, the
// terminal, the agent of ssh, and the way to archives and modules. What these bring is checked by
// sums. A name that ends with _ means all variables that begin with it.
var kept = []string{"PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "TERM", "SSH_", "DISPLAY",
	"WAYLAND_DISPLAY", "XAUTHORITY", "XDG_RUNTIME_DIR", "APT_CONFIG", "NETRC", "SSL_CERT_FILE",
	"SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy",
	"https_proxy", "no_proxy", "all_proxy"}

// fixed are variables of every program. They turn off `go env -w`, other toolchains, and git's
// configuration of the machine and of the user. git applies the settings that it counts after those
// of a repository. The user already runs this program from the tree, so git need not ask who owns
// the tree.
var fixed = []string{"LC_ALL=C", "TZ=UTC",
	"GOENV=off", "GOFLAGS=-trimpath -mod=readonly", "GOTOOLCHAIN=local", "GOWORK=off",
	"GIT_CONFIG_NOSYSTEM=1", "GIT_ATTR_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
	"GIT_NO_REPLACE_OBJECTS=1", "GIT_CONFIG_COUNT=3",
	"GIT_CONFIG_KEY_0=core.attributesFile", "GIT_CONFIG_VALUE_0=/dev/null",
	"GIT_CONFIG_KEY_1=core.hooksPath", "GIT_CONFIG_VALUE_1=/dev/null",
	"GIT_CONFIG_KEY_2=safe.directory", "GIT_CONFIG_VALUE_2=*"}

// environment returns the environment of programs: kept, the lines of readModuleSources in sources,
// and fixed.
func environment(sources []string) []string {
	var all []string
	for _, line := range os.Environ() {
		name, _, _ := strings.Cut(line, "=")
		if slices.ContainsFunc(kept, func(k string) bool {
			return name == k || strings.HasSuffix(k, "_") && strings.HasPrefix(name, k)
		}) {
			all = append(all, line)
		}
	}
	return slices.Concat(all, sources, fixed)
}

// sourceSettings are the settings of Go's tools that select where modules come from and where files
// are kept. go.sum has the sum of each module. Go compares it when it fetches the module, and
// verifyModules compares what GOMODCACHE has now, so a source cannot change what is built. Files
// that are changed in GOCACHE can.
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

// builtModules are the folders of the modules from which a release is built.
var builtModules = []string{".", "hack/tools/csi", "hack/tools/csi-provisioner",
	"hack/tools/cyclonedx-gomod", "hack/tools/kustomize"}

// verifyModules returns an error if a module that a release is built from was changed in
// GOMODCACHE. Modules that are not there yet are checked when they are fetched.
func verifyModules(ctx context.Context, tree string) error {
	for _, m := range builtModules {
		dir := filepath.Join(tree, m)
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); errors.Is(err, fs.ErrNotExist) {
			continue // a build that needs it fails
		}
		if _, err := command(ctx, dir, "go", "mod", "verify"); err != nil {
			return fmt.Errorf("%s: the cache of modules does not have what was fetched, see above; "+
				"`go clean -modcache` empties it: %w", m, err)
		}
	}
	return nil
}
