// Package redact takes secrets out of texts and objects that are about to leave a cluster in a bug
// report.
//
// It promises to take out, wherever they stand: private and preshared WireGuard keys,
// service-account and bootstrap tokens, private keys in PEM, also as base64, what kubeconfigs hold
// of credentials, passwords in URLs, and values under names that say that they are secret. A public
// WireGuard key looks like a private one: those that are named as public stay, every other word of
// that form goes.
//
// It refuses to be clever about what may stay: a false find costs a word of a log, a missed one a
// cluster. What it takes out is replaced by Mark, so that a reader sees that there was something,
// and counted.
//
// Start reading at Redactor.
package redact
