// Package storage holds the cases of what an API server keeps for volumes, in the lab of namespaces
// (e2e/lab): the store of volumes, the side-cars of the CSI driver, and what the token of a node's
// daemon may write. It has tests only.
//
// Two labs also test other subjects, because the start of a lab costs more than these tests: the
// manifests and veilctl check (TestAPIServerAlone), and the token of veild (TestStolenToken).
//
// It is larger than most packages, because its cases share the driver's installation and its
// clients.
//
// Start reading at control_test.go; ../../README.md lists which promise each test holds.
package storage
