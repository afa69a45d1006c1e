package conformance

import (
	"fmt"
	"strings"
)

// Registry is the prefix of the names of the images in out/images/conformance.tar. The registry
// does not exist, so the images cannot be pulled, and nodes must have them before the tests run.
const Registry = "kubeveil.test/e2e"

// RepoListEnv is the environment variable from which e2e.test takes the path of the file that lists
// the image registries.
const RepoListEnv = "KUBE_TEST_REPO_LIST"

// RepoList returns the content of the file that RepoListEnv names. The file makes the tests use the
// images of a registry. It does not change the private and the invalid registry, because their
// tests expect that the images do not exist.
func RepoList(registry string) []byte {
	var b strings.Builder
	for _, key := range []string{"promoterE2eRegistry", "buildImageRegistry", "gcEtcdRegistry",
		"gcRegistry", "sigStorageRegistry", "dockerLibraryRegistry", "cloudProviderGcpRegistry"} {
		fmt.Fprintf(&b, "%s: %s\n", key, registry)
	}
	return []byte(b.String())
}
