package upstream

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Group is the prefix of the names of the networking specs. Volumes is the prefix of the names of
// the specs for Kubeveil's volumes. e2e.test only has the specs for volumes if it gets a definition
// of the driver.
const (
	Group   = "[sig-network]"
	Volumes = "External Storage [Driver: csi.kubeveil.io]"
)

// specLine matches a line of `e2e.test --list-tests`: the position of the spec in the source, then
// its name.
var specLine = regexp.MustCompile(`^\s+\S+\.go:\d+: (.+)$`)

// ParseSpecs reads the output of `e2e.test --list-tests` and returns the names that begin with
// group, in the order of the output.
func ParseSpecs(printed []byte, group string) ([]string, error) {
	var specs []string
	seen := map[string]bool{}
	lines := bufio.NewScanner(bytes.NewReader(printed))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		m := specLine.FindStringSubmatch(lines.Text())
		if m == nil || !strings.HasPrefix(m[1], group) {
			continue
		}
		name := strings.TrimSpace(m[1])
		if seen[name] {
			return nil, fmt.Errorf("two specs are named %q", name)
		}
		seen[name] = true
		specs = append(specs, name)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("list of specs: %w", err)
	}
	if len(specs) == 0 {
		return nil, errors.New("list of specs: none of " + group)
	}
	return specs, nil
}

// Alone reports whether a spec must not run at the same time as others.
func Alone(spec string) bool {
	return strings.Contains(spec, "[Serial]") || strings.Contains(spec, "[Disruptive]")
}

// Focus returns a regular expression that matches these names and no others. Ginkgo matches it
// against the suite's description followed by a name.
func Focus(specs []string) string {
	quoted := make([]string, len(specs))
	for i, s := range specs {
		quoted[i] = regexp.QuoteMeta(s)
	}
	return "(?:" + strings.Join(quoted, "|") + ")$"
}
