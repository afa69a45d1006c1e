package program

import (
	"os"
	"os/exec"
	"path/filepath"
)

// HAProxy returns the path of the haproxy that hack/service/deps.sh fetches, or of the machine's
// own. root is the root of the repository.
func HAProxy(root string) string {
	own := filepath.Join(root, "out/tools/haproxy")
	if _, err := os.Stat(own); err == nil {
		return own
	}
	if path, err := exec.LookPath("haproxy"); err == nil {
		return path
	}
	return own
}

// KubeProxy returns the path of the kube-proxy that hack/build-kubernetes.sh puts below root.
func KubeProxy(root string) string { return filepath.Join(root, "out/bin/kube-proxy") }
