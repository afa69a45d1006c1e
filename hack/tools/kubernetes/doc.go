// Package kubernetes pins what the upstream end-to-end tests need beyond the programs that go.mod
// lists as tools: `go test -c` of a package builds with no more than this module asks for.
// hack/build-kubernetes.sh builds from here.
package kubernetes

import (
	_ "k8s.io/kubernetes/test/e2e"
	_ "k8s.io/kubernetes/test/e2e/apps"
	_ "k8s.io/kubernetes/test/e2e/network"
)
