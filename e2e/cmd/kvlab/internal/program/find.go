package program

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
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

// Numbers reads a list with commas, and sorts it.
func Numbers(list string) ([]int, error) {
	var out []int
	for text := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(text)
		if err != nil {
			return nil, fmt.Errorf("%q is not a number", text)
		}
		out = append(out, n)
	}
	slices.Sort(out)
	return out, nil
}

// Joined returns a list in the form that Numbers reads.
func Joined(list []int) string {
	var out []string
	for _, n := range list {
		out = append(out, strconv.Itoa(n))
	}
	return strings.Join(out, ",")
}
