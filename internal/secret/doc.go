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
// The runtime manages stacks. It copies a stack that grows and does not erase the old place:
// Reserve makes room before a computation, and Scrub overwrites what the computation left. The
// runtime also copies a stack that shrinks: KeepStacks and Environ switch that off.
//
// Start reading at Alloc.
package secret
