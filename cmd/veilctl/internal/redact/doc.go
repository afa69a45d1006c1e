// Package redact removes secrets from texts and objects that are about to leave a cluster in a bug
// report.
//
// It removes these secrets anywhere in a text: private and preshared WireGuard keys,
// service-account and bootstrap tokens, private keys in PEM (also PEM in base64), credentials in
// kubeconfigs, passwords in URLs, and values with names of secrets. A public WireGuard key has the
// same form as a private key. So New takes the public keys to keep, and all other words of this
// form are removed.
//
// In doubt, it removes a word: a false positive costs a word of a log, but a missed secret may cost
// a cluster. Each secret is counted, and replaced by Mark, so that a reader sees the gap.
//
// Start reading at Redactor.
package redact
