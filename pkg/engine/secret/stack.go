package secret

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
