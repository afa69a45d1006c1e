// Package keyring keeps the keys of volumes: in memory as a Secret, and wrapped by a key-encryption
// key everywhere else.
//
// It promises that a Secret has no text form (it prints as "redacted" in every verb, log and
// encoding), lies in memory that is locked, not dumped and not inherited, and is gone after Wipe;
// and that what Unwrap returns was wrapped for exactly the cluster and volume that it was asked
// for, whatever the provider checks by itself.
//
// Three providers wrap: KMS (a Kubernetes KMS v2 plugin on a unix socket), FromSecrets (a key that
// came with a CSI request) and File (a key in a file, for demonstrations: whoever has that file's
// disk has the key). A provider never sees which data the key is for beyond those names.
//
// It refuses passphrases: key-encryption keys are 32 random bytes, so nothing here stretches
// anything.
//
// The standard library's ciphers copy keys into the heap, which is not wiped: call Harden first
// thing in main, so that the heap is not swapped or dumped either.
//
// Start reading at Provider, then secret.go.
package keyring
