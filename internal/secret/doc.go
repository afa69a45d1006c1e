// Package secret holds keys outside the Go heap.
//
// An Arena maps anonymous memory, locks it against swapping (mlock(2)), keeps it out of core dumps
// (MADV_DONTDUMP) and out of children (MADV_WIPEONFORK). Free overwrites a value with zeros before
// its memory is used again. The garbage collector neither copies nor scans this memory.
//
// It refuses a type with pointers by contract, not by a check: T must hold bytes and numbers only.
// A process without CAP_IPC_LOCK may reach RLIMIT_MEMLOCK; Locked then reports false and the memory
// is used all the same.
//
// Sealed is such memory that another process reads, to go on with the keys.
//
// Stacks are the runtime's. It copies one that grows and leaves the old place as it was: Reserve
// makes room before a computation, and Scrub overwrites what the computation left. It copies one
// that shrinks, too: KeepStacks and Environ switch that off.
//
// Start reading at Alloc.
package secret
