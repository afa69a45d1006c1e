package secret

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// keepStacks is the GODEBUG setting with which the garbage collector does not shrink stacks (Go's
// package runtime). Otherwise the collector could copy a stack to a smaller one during a
// computation on secrets, and Scrub would not overwrite the old stack. The runtime reads the
// setting only when the program starts.
const keepStacks = "gcshrinkstackoff=1"

// variable is the name of the environment variable GODEBUG and "=".
const variable = "GODEBUG="

// KeepStacks executes the program again in this process, with the environment that Environ returns.
// If that succeeds, KeepStacks does not return. Arguments, process ID and inherited descriptors
// stay. It returns nil if the process already has the setting. It must be the first call in main.
func KeepStacks() error {
	if StacksAreKept() {
		return nil
	}
	program, err := os.Executable()
	if err == nil {
		err = unix.Exec(program, os.Args, Environ())
	}
	return fmt.Errorf("start the program again with %s%s: %w", variable, keepStacks, err)
}

// Environ returns the environment for a process that computes on secrets: the environment of this
// process, with the setting that keeps the runtime from copying stacks.
func Environ() []string {
	if StacksAreKept() {
		return os.Environ()
	}
	settings := keepStacks
	if has := os.Getenv("GODEBUG"); has != "" {
		settings = has + "," + settings
	}
	// Of two variables with the same name, the runtime reads the first.
	others := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, variable)
	})
	return append(others, variable+settings)
}

// StacksAreKept reports whether this process has the setting of Environ.
func StacksAreKept() bool {
	settings := strings.Split(os.Getenv("GODEBUG"), ",")
	for i := len(settings) - 1; i >= 0; i-- {
		if name, _, _ := strings.Cut(settings[i], "="); name == "gcshrinkstackoff" {
			return settings[i] == keepStacks
		}
	}
	return false
}

// Reserve makes the stack of the calling goroutine large enough for a computation on secrets. If
// the stack grew during the computation, the runtime would leave a copy of it behind.
func Reserve()

// scrubbed is the number of bytes of the stack that Scrub overwrites.
const scrubbed = 2048

// Scrub overwrites the stack below the caller's frame, and the vector registers. It must be called
// after a computation on secrets has returned, because the variables of the computation are still
// on the stack, and parts of keys in registers.
//
//go:noinline
func Scrub() {
	var b [scrubbed]byte
	wipe(&b)
	scrubVectors()
}

//go:noinline
func wipe(b *[scrubbed]byte) { clear(b[:]) }
