package network

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/e2e/cluster/network/nodes"
)

func TestCasesAreWellFormed(t *testing.T) {
	seen := map[string]bool{}
	all := slices.Concat(Cases(), ReleaseCases(nodes.Releases{})[1:])
	for _, c := range all {
		if c.Name == "" || c.About == "" || c.Limit == 0 || c.Run == nil || seen[c.Name] ||
			strings.ToLower(c.Name) != c.Name {
			t.Errorf("case %+v", c)
		}
		seen[c.Name] = true
	}
	var out bytes.Buffer
	List(&out, all)
	if strings.Count(out.String(), "\n") != len(all) {
		t.Errorf("the list:\n%s", out.String())
	}
}
