package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/kubeveil/kubeveil/e2e/conformance/upstream"
)

// siteTest is the test of mcs-api's suite that runs its specs.
const siteTest = "TestConformance"

// siteTable contains the compiled entries of sitereasons.go.
var siteTable = compile(siteReasons)

// Sites returns the specs of mcs-api's conformance suite. contexts are the contexts of the
// kubeconfig, with a comma between them: the first cluster is the one that exports. RunConfig.Program
// is a Go test binary. Its specs share no objects, but run one at a time, because their limits are
// 20 seconds.
func Sites(contexts string) Suite {
	return Suite{Group: upstream.Sites, reasons: siteTable, contexts: contexts, mark: "Required"}
}

// siteSpecs returns the names of the specs.
func (o RunConfig) siteSpecs(ctx context.Context) (names []string, err error) {
	dir, err := os.MkdirTemp("", "mcs-api-") // The suite writes reports to its folder.
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ctx, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	report := filepath.Join(dir, "list.xml")
	cmd := exec.CommandContext(ctx, o.Program, "-test.run=^"+siteTest+"$", "-ginkgo.dry-run",
		"-ginkgo.no-color", "-ginkgo.junit-report="+report)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("list of specs: %w: %s", err, firstWords(string(out), 300))
	}

	outcomes, err := readJUnit(report)
	if err != nil {
		return nil, fmt.Errorf("list of specs: %w", err)
	}
	for _, o := range upstream.SiteSpecs(outcomes) {
		if o.Name != "" {
			names = append(names, o.Name)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("list of specs: %s has none", o.Program)
	}
	return names, nil
}

// siteArguments are the arguments of the program for these specs.
func (o RunConfig) siteArguments(dir string, specs []string, limit time.Duration) []string {
	return []string{"-test.run=^" + siteTest + "$", "-test.timeout=0",
		"-ginkgo.no-color", "-ginkgo.timeout=" + limit.String(),
		"-ginkgo.focus=" + upstream.SiteFocus(specs),
		"-ginkgo.junit-report=" + filepath.Join(dir, junit),
		"-kubeconfig=" + o.Kubeconfig, "-contexts=" + o.suite().contexts,
		"-project=Kubeveil"}
}
