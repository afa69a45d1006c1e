package check

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

// The advice of `veilctl check` only names existing flags of check, in their correct form, and
// flags of other programs.
func TestCheckAdvisesFlagsThatItTakes(t *testing.T) {
	others := []string{"--allocate-node-cidrs", "--arch", "--cluster-cidr", "--feature-gates",
		"--goaway-chance", "--overwrite", "--pod-network-cidr", "--runtime-config",
		"--service-cluster-ip-range", "-f", "-l", "-n"}
	check := Check()
	files, err := filepath.Glob("../preflight/*.go")
	errtest.Must(t, err)

	flag := regexp.MustCompile("(?:^|[\\s(`])(--?[a-z][a-z-]*)")
	found := 0
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		errtest.Must(t, err)
		ast.Inspect(f, func(n ast.Node) bool {
			text, ok := n.(*ast.BasicLit)
			if !ok || text.Kind != token.STRING {
				return true
			}
			for _, m := range flag.FindAllStringSubmatch(strings.Trim(text.Value, "\"`"), -1) {
				name, long := strings.CutPrefix(m[1], "--")
				if long && check.Flag(name) != nil {
					found++
				} else if !slices.Contains(others, m[1]) {
					t.Errorf("%s: %s advises %s, which check does not take", path, text.Value, m[1])
				}
			}
			return true
		})
	}
	if found < 4 {
		t.Errorf("%d flags of check found in its advice: does the test still find them?", found)
	}
}
