package conformance

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/e2e/conformance/upstream"
)

// listLimit is the time that e2e.test has to list its specs.
const listLimit = 2 * time.Minute

// suite returns the suite to run, which is Network if Suite is the zero value.
func (o RunConfig) suite() Suite {
	if o.Suite.Group == "" {
		return Network()
	}
	return o.Suite
}

// Wanted returns the names of the specs that Focus and Skip select. It needs Program but no
// cluster. Callers that make a cluster for the run should call it first, because it returns an
// error if no specs are selected or if the table has reasons for specs that the upstream does not
// have.
func (o RunConfig) Wanted(ctx context.Context) ([]string, error) {
	suite := o.suite()
	specs, err := o.list(ctx, suite)
	if err != nil {
		return nil, err
	}
	if err := suite.Unmatched(specs); err != nil {
		return nil, err
	}
	wanted := slices.DeleteFunc(slices.Clone(specs), func(s string) bool {
		return o.Focus != nil && !o.Focus.MatchString(s) || o.Skip != nil && o.Skip.MatchString(s)
	})
	if len(wanted) > 0 {
		return wanted, nil
	}

	var by []string
	if o.Focus != nil {
		by = append(by, fmt.Sprintf("focus %q", o.Focus))
	}
	if o.Skip != nil {
		by = append(by, fmt.Sprintf("skip %q", o.Skip))
	}
	where := "`" + o.Program + " --list-tests` prints their names"
	if suite.names != "" {
		where = suite.names + " has their names"
	} else if suite.contexts != "" {
		where = "`" + o.Program + " -ginkgo.dry-run -ginkgo.v` prints their names"
	}
	return nil, fmt.Errorf("%s leaves none of the %d specs of %s: %s", strings.Join(by, " and "),
		len(specs), suite.Group, where)
}

// list returns the names of the specs from e2e.test, or the names of a Go test's subtests from a
// file.
func (o RunConfig) list(ctx context.Context, suite Suite) ([]string, error) {
	if suite.names != "" {
		return suite.policyNames()
	}
	if suite.contexts != "" {
		return o.siteSpecs(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, o.Program,
		append([]string{"--list-tests"}, suite.Arguments...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	printed, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s --list-tests: %w: %s", o.Program, err,
			bytes.TrimSpace(stderr.Bytes()))
	}
	return upstream.ParseSpecs(printed, suite.Group)
}
