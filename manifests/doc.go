// Package manifests has tests only: they hold what a reader of the manifests relies on. Rights and
// openings of the host have a reason beside them, no container has more than its reason says, and
// components change what they say and no more.
//
// What an API server makes of them is tested in e2e/node/storage; hack/frozen holds what kustomize
// renders.
//
// Start reading at lint_test.go.
package manifests
