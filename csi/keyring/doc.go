// Package keyring keeps the keys of volumes: in memory as a Secret, and wrapped by a key-encryption
// key everywhere else.
//
// It promises two things. A Secret has no text form (it prints as "redacted" in every verb, log and
// encoding), lies in memory that is locked, not dumped and not inherited, and is gone after Wipe.
// And Unwrap returns only a key that was wrapped for exactly the given cluster and volume,
// regardless of the provider's own checks.
//
// Three providers wrap. KMS uses a Kubernetes KMS v2 plugin on a unix socket. FromSecrets uses a
// key that came with a CSI request. File uses a key in a file, for demonstrations: the owner of
// that file's disk has the key. A provider learns those names and nothing else about the data.
//
// It refuses passphrases: key-encryption keys are 32 random bytes, so no key is stretched.
//
// The standard library's ciphers copy keys into the heap, which is not wiped. So call Harden first
// in main, which keeps the heap from being swapped or dumped, and secret.KeepStacks before it.
//
// Start reading at Provider, then secret.go.
package keyring
