// Package redact removes secrets from texts and objects that are about to leave a cluster in a bug
// report.
//
// It promises to remove, wherever they stand: private and preshared WireGuard keys, service-account
// and bootstrap tokens, private keys in PEM, also as base64, credentials of kubeconfigs, passwords
// in URLs, and values under names of secrets. A public WireGuard key looks like a private one: keys
// that are named as public stay, and every other word of that form is removed.
//
// It refuses to be clever about what may stay: a false find costs a word of a log, a missed one a
// cluster. A secret is replaced by Mark, so that a reader sees that there was something, and
// counted.
//
// Start reading at Redactor.
package redact
