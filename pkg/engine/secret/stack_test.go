package secret_test

import (
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/engine/secret"
)

func TestEnvironKeepsWhatIsSet(t *testing.T) {
	for before, want := range map[string]string{
		"":                                "gcshrinkstackoff=1",
		"madvdontneed=1":                  "madvdontneed=1,gcshrinkstackoff=1",
		"gcshrinkstackoff=1,gctrace=0":    "gcshrinkstackoff=1,gctrace=0",
		"gcshrinkstackoff=0":              "gcshrinkstackoff=0,gcshrinkstackoff=1",
		"gcshrinkstackoff=1,gctrace=1,a=": "gcshrinkstackoff=1,gctrace=1,a=",
	} {
		t.Setenv("GODEBUG", before)
		got := ""
		for _, v := range secret.Environ() {
			if value, is := strings.CutPrefix(v, "GODEBUG="); is {
				got = value // the last one counts
			}
		}
		if got != want {
			t.Errorf("GODEBUG=%s: %q, want %q", before, got, want)
		}
	}
}
