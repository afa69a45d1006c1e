package upstream

import (
	"regexp"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

// A name in a report selects its spec, and no other one that begins or ends with its text.
func TestFocusOfSites(t *testing.T) {
	report := `<testsuites><testsuite>
		<testcase name="[BeforeSuite]" status="passed"></testcase>
		<testcase name="[It] A service exported  should (once) [ClusterIP, Required]" status="passed"/>
		</testsuite></testsuites>`
	outcomes, err := ParseJUnit(strings.NewReader(report))
	errtest.Must(t, err)
	outcomes = SiteSpecs(outcomes)
	const name = "[mcs-api] A service exported should (once) [ClusterIP, Required]"
	if len(outcomes) != 2 || outcomes[0].Step != "[BeforeSuite]" || outcomes[1].Name != name {
		t.Fatalf("%+v", outcomes)
	}

	focus, err := regexp.Compile(SiteFocus([]string{name, "[mcs-api] Other [Optional]"}))
	errtest.Must(t, err)
	for text, want := range map[string]bool{
		"Conformance Suite  A service exported  should (once)":      true,
		"Conformance Suite Other":                                   true,
		"Conformance Suite A service exported  should (once) again": false,
		"Conformance Suite Not A service exported  should (once)":   false,
		"Conformance Suite A service exported should once":          false,
	} {
		if focus.MatchString(text) != want {
			t.Errorf("%q is selected: %v", text, !want)
		}
	}
}
