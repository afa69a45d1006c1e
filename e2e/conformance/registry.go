package conformance

import (
	"fmt"
	"strings"
)

// Registry begins the names of the images in out/images/conformance.tar. No such place
// exists: nothing can be pulled, so nodes must have them before the tests run.
const Registry = "kubeveil.test/e2e"

// RepoListEnv is the environment variable by which e2e.test is told where images are.
const RepoListEnv = "KUBE_TEST_REPO_LIST"

// RepoList is the file that RepoListEnv names: it moves the images of the tests to a registry.
// Those of the private and of the invalid registry stay where they are, because the tests of these
// want them not to be there.
func RepoList(registry string) []byte {
	var b strings.Builder
	for _, key := range []string{"promoterE2eRegistry", "buildImageRegistry", "gcEtcdRegistry",
		"gcRegistry", "sigStorageRegistry", "dockerLibraryRegistry", "cloudProviderGcpRegistry"} {
		fmt.Fprintf(&b, "%s: %s\n", key, registry)
	}
	return []byte(b.String())
}
