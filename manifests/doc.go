// Package manifests has tests only: they hold what a reader of the manifests relies on. Rights and
// openings of the host have a reason beside them. No container has more than its reason covers. A
// component changes only what its comment describes.
//
// What an API server makes of them is tested in e2e/node/storage; hack/frozen holds what kustomize
// renders.
//
// Start reading at lint_test.go.
package manifests
