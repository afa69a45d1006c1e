package release

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// Folder is the path of the folder of a release, which `make release` wrote.
type Folder string

// File returns the path of a file of the release.
func (f Folder) File(name string) string { return filepath.Join(string(f), name) }

var byDigest = regexp.MustCompile(`image: (\S+):(\S+)@(sha256:[0-9a-f]{64})\n`)

// Tag returns the command that gives an imported image the name with its digest, as the file
// manifest has it.
func (f Folder) Tag(manifest string) (string, error) {
	text, err := os.ReadFile(f.File(manifest))
	if err != nil {
		return "", err
	}
	image := byDigest.FindSubmatch(text)
	if image == nil {
		return "", fmt.Errorf("%s names no image with a digest", f.File(manifest))
	}
	return fmt.Sprintf("ctr -n k8s.io images tag %s:%s %[1]s@%[3]s", image[1], image[2], image[3]),
		nil
}

// Chart is the name of the chart and of its installation.
const Chart = "kubeveil"

// Archive returns the path of the chart.
func (f Folder) Archive() (string, error) {
	archives, err := filepath.Glob(f.File(Chart + "-[0-9]*.tgz"))
	if err == nil && len(archives) != 1 {
		err = fmt.Errorf("%s has %d charts, want one", f, len(archives))
	}
	if err != nil {
		return "", err
	}
	return archives[0], nil
}

// Helm runs Helm like a user.
type Helm struct {
	// Program and Kubeconfig are paths. Home is the folder for Helm's own files.
	Program, Kubeconfig, Home string
}

// Run runs a verb of Helm in the namespace of the chart.
func (h Helm) Run(ctx context.Context, args ...string) error {
	c := exec.CommandContext(ctx, h.Program, append(args, "--namespace", "kube-system",
		"--kubeconfig", h.Kubeconfig)...)
	c.Env = os.Environ()
	for _, home := range []string{"CONFIG", "CACHE", "DATA"} {
		c.Env = append(c.Env, "HELM_"+home+"_HOME="+filepath.Join(h.Home, home))
	}
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("helm %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}
