package bench

import (
	"strings"
	"testing"
)

func TestCheckNodes(t *testing.T) {
	for _, known := range nodePlatforms {
		if err := CheckNodes(known); err != nil {
			t.Errorf("%s: %v", known, err)
		}
	}
	for name, platform := range map[string]string{"mistyped": "sevsnp", "nothing": "",
		"no nodes there": Namespaces} {
		if err := CheckNodes(platform); err == nil ||
			!strings.Contains(err.Error(), "write one of emulated, vm, sev-snp, tdx, metal") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestJudgesFailures(t *testing.T) {
	if g := Unexplained(2); g.OK || !JudgesFailures([]Gate{{Name: "other"}, g}) ||
		!Unexplained(0).OK {
		t.Errorf("%+v", g)
	}
	if JudgesFailures([]Gate{{Name: "other", OK: true}}) {
		t.Error("JudgesFailures is true without the gate")
	}
}
