package upstream

import (
	"regexp"
	"strings"
)

// Sites is the prefix of the names of the specs of mcs-api's conformance suite.
const Sites = "[mcs-api]"

// labels matches the labels at the end of a name in a report of Ginkgo.
var labels = regexp.MustCompile(` \[[^\]]*\]$`)

// SiteSpecs returns outcomes with the names of SiteFocus: Sites, the text of the spec with single
// spaces, and its labels. Steps keep their names.
func SiteSpecs(outcomes []Outcome) []Outcome {
	for i, o := range outcomes {
		if o.Name != "" {
			outcomes[i].Name = Sites + " " + strings.Join(strings.Fields(o.Name), " ")
		}
	}
	return outcomes
}

// SiteFocus is Focus for names of SiteSpecs.
func SiteFocus(specs []string) string {
	quoted := make([]string, len(specs))
	for i, s := range specs {
		text := labels.ReplaceAllString(strings.TrimPrefix(s, Sites+" "), "")
		quoted[i] = strings.ReplaceAll(regexp.QuoteMeta(text), " ", ` +`)
	}
	return "^Conformance Suite +(?:" + strings.Join(quoted, "|") + ")$"
}
