package record_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/site/record"
)

// Names in domains of Kubernetes and of Kubeveil are not copied, and neither is what the API server
// would refuse.
func TestCopiedByName(t *testing.T) {
	for name, why := range map[string]string{
		"team":                                 "",
		"example.com/team":                     "",
		"notkubernetes.io/team":                "",
		"kubernetes.io/metadata.name":          "reserved",
		"app.kubernetes.io/managed-by":         "reserved",
		"multicluster.kubernetes.io/x":         "reserved",
		"node.alpha.kubernetes.io/x":           "reserved",
		"multicluster.x-k8s.io/x":              "reserved",
		"k8s.io/x":                             "reserved",
		"kubeveil.io/prefer":                   "reserved",
		"a b":                                  "must consist of",
		"-/x":                                  "must consist of",
		strings.Repeat("x", 64):                "no more than 63",
		"":                                     "non-empty",
		"example.com/a/b":                      "must consist of",
		"example.com/\x00":                     "must consist of",
		strings.Repeat("x", 254) + "/x":        "no more than 253",
		strings.Repeat("é", 40) + ".example/x": "lower case",
	} {
		one := map[string]string{name: "v"}
		l, a, left := record.Copied(one, one)
		if why == "" && (!maps.Equal(l, one) || !maps.Equal(a, one) || len(left) > 0) ||
			why != "" && (len(l) > 0 || len(a) > 0 || len(left) != 2 ||
				!strings.Contains(left[0], why)) {
			t.Errorf("%q: labels %v, annotations %v, left %q", name, l, a, left)
		}
	}

	odd := map[string]string{"x": "a\nb"}
	l, a, left := record.Copied(odd, odd)
	if len(l) > 0 || a["x"] != "a\nb" || len(left) != 1 || !strings.HasPrefix(left[0],
		`the label "x" is not copied: `) {
		t.Errorf("labels %v, annotations %v, left %q", l, a, left)
	}
}

// Labels come first, and what is beyond the bounds is left out.
func TestCopiedIsBounded(t *testing.T) {
	many := map[string]string{}
	for i := range record.MaxCopied {
		many[fmt.Sprintf("x%03d", i)] = ""
	}
	l, a, left := record.Copied(map[string]string{"a": "", "b": ""}, many)
	if len(l) != 2 || len(a) != record.MaxCopied-2 || len(left) != 2 ||
		!strings.HasPrefix(left[1], `the annotation "x063" is not copied: an export has at most 64`) {
		t.Errorf("%d labels, %d annotations, left %q", len(l), len(a), left)
	}

	all := map[string]string{"big": strings.Repeat("v", record.MaxCopiedBytes-3), "c": "", "long": "v"}
	_, a, left = record.Copied(nil, all)
	if !slices.Equal(slices.Collect(maps.Keys(a)), []string{"big"}) || len(left) != 2 {
		t.Errorf("%d annotations, left %q", len(a), left)
	}
}

// What a record has too much is left out when it is read.
func TestDecodeCopiesWithinTheBounds(t *testing.T) {
	r, err := record.Decode("service.shop.web", []byte(`{"service":{"headless":true,`+
		`"labels":{"team":"a","kubeveil.io/x":"y"},"annotations":{"note":"b"}}}`))
	if err != nil || len(r.Service.Labels) != 1 || r.Service.Annotations["note"] != "b" ||
		!strings.Contains(r.Service.NotCopied, `"kubeveil.io/x"`) {
		t.Errorf("%+v: %v", r.Service, err)
	}
}
