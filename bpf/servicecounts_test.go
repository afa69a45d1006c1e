package bpf

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/filetest"
)

// TestServiceCountsMatchThePrograms checks that Go and C have the same counters in the same order.
func TestServiceCountsMatchThePrograms(t *testing.T) {
	text := filetest.Read(t, "lib/service/count.h")
	body := regexp.MustCompile(`(?s)enum service_count \{(.*?)\n\};`).FindSubmatch(text)
	if body == nil {
		t.Fatal("count.h has no enum service_count")
	}

	var got, want []string
	for _, m := range regexp.MustCompile(`(?m)^\tCOUNT_(\w+),`).FindAllSubmatch(body[1], -1) {
		got = append(got, string(m[1]))
	}
	for _, c := range ServiceCounts {
		want = append(want, c.Constant)
	}
	if !slices.Equal(got, want) {
		t.Errorf("C counts\n%v\nGo reads\n%v", got, want)
	}
}

func TestServiceCountsAreNamedOnce(t *testing.T) {
	seen := make(map[string]bool)
	for _, c := range ServiceCounts {
		if !strings.HasPrefix(c.Constant, strings.ToUpper(c.Where)+"_") {
			t.Errorf("%s does not count at %q", c.Constant, c.Where)
		}
		if label := c.Where + " " + c.Name; c.Name != "" && seen[label] {
			t.Errorf("two counters are %s", label)
		} else {
			seen[label] = true
		}
		if c.Sentence != "" && (c.Name == "" || !strings.HasSuffix(c.Sentence, ".")) {
			t.Errorf("%s: a refusal needs a name and a sentence: %q, %q", c.Constant, c.Name,
				c.Sentence)
		}
	}
}
