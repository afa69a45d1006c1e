// Package keyring keeps the keys of volumes: in memory as a Secret, and wrapped by a key-encryption
// key everywhere else.
//
// It promises two things. First, a Secret prints as "redacted" in every verb, log and encoding. Its
// memory is locked, not dumped and not inherited, and Wipe overwrites it. Second, Unwrap returns
// only a key that was wrapped for the given cluster and volume, regardless of the provider's own
// checks.
//
// Three providers wrap. KMS uses a Kubernetes KMS v2 plugin on a unix socket. FromSecrets uses a
// key that came with a CSI request. File uses a key in a file. It is for demonstrations, because
// the owner of that file's disk has the key. A provider learns the names of cluster and volume, and
// nothing else about the data.
//
// It does not accept passphrases. Key-encryption keys are 32 random bytes, so they need no key
// stretching.
//
// The standard library's ciphers copy keys to the heap, which is not wiped. So main must first call
// secret.KeepStacks, then Harden, which prevents that the heap is swapped or dumped.
//
// Start reading at Provider, then secret.go.
package keyring
