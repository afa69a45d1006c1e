package conformance

import (
	"fmt"
	"strings"
)

// Registry is the prefix of the names of the images in out/images/conformance.tar. No such registry
// exists and nothing can be pulled, so nodes must have the images before the tests run.
const Registry = "kubeveil.test/e2e"

// RepoListEnv is the environment variable that names, for e2e.test, the file of image registries.
const RepoListEnv = "KUBE_TEST_REPO_LIST"

// RepoList returns the file that RepoListEnv names: it moves the images of the tests to a registry.
// Images of the private and of the invalid registry stay where they are, because their tests expect
// that the images do not exist.
func RepoList(registry string) []byte {
	var b strings.Builder
	for _, key := range []string{"promoterE2eRegistry", "buildImageRegistry", "gcEtcdRegistry",
		"gcRegistry", "sigStorageRegistry", "dockerLibraryRegistry", "cloudProviderGcpRegistry"} {
		fmt.Fprintf(&b, "%s: %s\n", key, registry)
	}
	return []byte(b.String())
}
