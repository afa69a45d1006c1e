// Package nettest is the base of tests that use the kernel. Only tests import it.
//
// It promises:
//   - A test changes nothing outside namespaces that it made.
//   - All objects that a test made disappear at its end, also if it fails.
//   - No test skips silently. Each skip has a Reason and is logged to the file that
//     KUBEVEIL_SKIP_LOG names. Where CI=true, a skip fails the test, unless KUBEVEIL_EXPECTED_SKIPS
//     lists the reason.
//
// Start reading at NewNS (a network namespace), NewHost (a node with a network and a mount
// namespace), Veth (a link between namespaces), SendFrames (raw frames), Lookup (the route of a
// packet) and Capture (the frames on a link). Every TestMain calls Run, which fails a package whose
// tests leak resources.
//
// Addresses in tests are from 198.18.0.0/15 and fd42::/16.
package nettest
