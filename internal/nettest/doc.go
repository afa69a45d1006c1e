// Package nettest is the base of tests that use the kernel. Only tests import it.
//
// It promises that a test changes nothing outside namespaces that it made
// itself, that all it made goes when the test ends (also when it fails), and
// that no test skips silently: each skip has a Reason, is logged to the file
// named by KUBEVEIL_SKIP_LOG, and fails where CI=true unless the reason is listed
// in KUBEVEIL_EXPECTED_SKIPS.
//
// Start reading at NewNS (a network namespace), NewHost (a node: network and mount namespace), Veth
// (a cable), SendFrames (what the kernel would not send), Lookup (where would this packet go) and
// Capture (what went over this link). Run belongs into every TestMain: it fails a package whose
// tests leak.
//
// Addresses in tests are from 198.18.0.0/15 and fd42::/16.
package nettest
