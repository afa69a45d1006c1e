package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/e2e/cluster/network"
	"github.com/kubeveil/kubeveil/e2e/cluster/network/nodes"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

// Names in README.md: folder.Test, and folder:case for cases of package network.
var (
	testName = regexp.MustCompile("`([a-z0-9/-]+)\\.(Test\\w+)`")
	caseName = regexp.MustCompile("`e2e/cluster/network:([a-z0-9-]+)`")
)

// A promise that names a test which is not there is held by nothing.
func TestReadmeNamesTestsThatExist(t *testing.T) {
	text := filetest.Read(t, "README.md")

	tests := testName.FindAllStringSubmatch(string(text), -1)
	if len(tests) < 50 {
		t.Errorf("%d tests are named: were they written in another way?", len(tests))
	}
	for _, m := range tests {
		if !declared(t, m[1], m[2]) {
			t.Errorf("%s has no %s", m[1], m[2])
		}
	}

	cases := map[string]bool{}
	for _, c := range slices.Concat(network.Cases(), network.ReleaseCases(nodes.Releases{})) {
		cases[c.Name] = true
	}
	for _, m := range caseName.FindAllStringSubmatch(string(text), -1) {
		if !cases[m[1]] {
			t.Errorf("e2e/cluster/network has no case %s", m[1])
		}
	}
}

// Every exception of the security model has a row.
func TestReadmeHasEachException(t *testing.T) {
	model := filetest.Read(t, "../docs/security.md")
	readme := filetest.Read(t, "README.md")

	_, below, _ := strings.Cut(string(readme), "### Exceptions")
	rows := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\| ([\d, ]+) \|`).FindAllStringSubmatch(below, -1) {
		for number := range strings.SplitSeq(m[1], ",") {
			rows[strings.TrimSpace(number)] = true
		}
	}

	exceptions := regexp.MustCompile(`(?m)^\| (\d+) \|`).FindAllStringSubmatch(string(model), -1)
	if len(exceptions) == 0 {
		t.Fatal("docs/security.md has no exception: is its table written in another way?")
	}
	for _, m := range exceptions {
		if !rows[m[1]] {
			t.Errorf("no row for exception %s of docs/security.md", m[1])
		}
	}
}

// declared reports whether a test file of a folder of the repository declares the test.
func declared(t *testing.T, folder, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", folder, "*_test.go"))
	errtest.Must(t, err)
	for _, file := range files {
		text := filetest.Read(t, file)
		if strings.Contains(string(text), "\nfunc "+name+"(") {
			return true
		}
	}
	return false
}
