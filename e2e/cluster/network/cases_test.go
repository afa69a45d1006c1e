package network

import (
	"bytes"
	"strings"
	"testing"
)

func TestCasesAreWellFormed(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Cases() {
		if c.Name == "" || c.About == "" || c.Limit == 0 || c.Run == nil || seen[c.Name] ||
			strings.ToLower(c.Name) != c.Name {
			t.Errorf("case %+v", c)
		}
		seen[c.Name] = true
	}
	var out bytes.Buffer
	List(&out)
	if strings.Count(out.String(), "\n") != len(Cases()) {
		t.Errorf("the list:\n%s", out.String())
	}
}
