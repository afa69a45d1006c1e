// Package secret holds keys outside the Go heap.
//
// An Arena maps anonymous memory, locks it against swapping (mlock(2)), keeps it out of core dumps
// (MADV_DONTDUMP) and out of children (MADV_WIPEONFORK). Free overwrites a value with zeros before
// its memory is used again. The garbage collector neither copies nor scans this memory.
//
// A type in an Arena must contain only bytes and numbers, and no pointers. This is not checked. A
// process without CAP_IPC_LOCK may reach RLIMIT_MEMLOCK. The memory is then used without a lock,
// and Locked returns false.
//
// Sealed is memory for keys that one process passes to another.
//
// The Go runtime copies a stack that grows and does not erase the old copy. So Reserve makes the
// stack large enough before a computation on secrets, and Scrub overwrites the stack and the vector
// registers afterwards. The runtime also copies a stack that shrinks, which KeepStacks and Environ
// turn off. A signal during a computation would save the registers in memory, so LockThread and
// Unpreempted block signals.
//
// Start reading at Alloc.
package secret
