package secret

import (
	"os"
	"strings"
)

// Setting is what Environ has beside the environment of this process.
const Setting = "GODEBUG=" + keepStacks

// keepStacks has the garbage collector leave stacks as large as they are (Go's package runtime,
// GODEBUG). It would else move one to a smaller place in the middle of a computation on secrets.
// Scrub does not overwrite what is left at the old place.
const keepStacks = "gcshrinkstackoff=1"

// Environ returns the environment for a process that computes on secrets: this one's, with the
// setting that keeps the runtime from copying stacks.
func Environ() []string {
	settings := os.Getenv("GODEBUG")
	if StacksAreKept() {
		return os.Environ()
	}
	if settings != "" {
		settings += ","
	}
	return append(os.Environ(), "GODEBUG="+settings+keepStacks)
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

// Reserve makes the stack of the calling goroutine large enough for a computation on secrets. Where
// the stack grew during one, the runtime would leave a copy of it behind.
func Reserve()

// scrubbed is how much of the stack Scrub overwrites, bytes.
const scrubbed = 2048

// Scrub overwrites the stack below the caller's frame, on which a computation on secrets that has
// returned left its variables.
//
//go:noinline
func Scrub() {
	var b [scrubbed]byte
	wipe(&b)
}

//go:noinline
func wipe(b *[scrubbed]byte) { clear(b[:]) }
