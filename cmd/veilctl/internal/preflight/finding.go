package preflight

import (
	"fmt"
	"slices"
	"strings"
)

// Level is the severity of a finding.
type Level string

// Levels, from good to bad.
const (
	OK Level = "ok"
	// Warning means that Kubeveil works, but that the finding needs attention.
	Warning Level = "warning"
	// Error means that Kubeveil cannot work on at least one node.
	Error Level = "error"
)

// Finding is the result of one check.
type Finding struct {
	// Check names what was checked, in a word or two; one check may have several findings.
	Check string `json:"check"`
	Level Level  `json:"level"`
	// Found is the fact, and Do the remedy. Do is empty when Level is OK.
	Found string `json:"found"`
	Do    string `json:"do,omitempty"`
}

// Judge checks all facts in f, in the order in which they depend on each other. If the API server
// did not answer, it returns only this finding.
func Judge(f Facts) []Finding {
	if f.Server.Err != "" {
		return []Finding{{"api server", Error,
			fmt.Sprintf("%s does not answer: %s", f.Server.Address, f.Server.Err),
			"correct the kubeconfig, or name another with --kubeconfig and --context"}}
	}
	j := judge{f: f}
	j.readConfig()
	for _, check := range []func(*judge){
		(*judge).server, (*judge).rights, (*judge).podSecurity, (*judge).present, (*judge).ranges,
		(*judge).kubeProxy, (*judge).spread, (*judge).frontends, (*judge).podCIDRs,
		(*judge).overlaps, (*judge).nodeRanges, (*judge).otherCNI, (*judge).strangers,
		(*judge).kernels, (*judge).runtimes, (*judge).kubelets, (*judge).mtu,
		(*judge).unread,
	} {
		check(&j)
	}
	return j.findings
}

// Count returns the number of findings of a level.
func Count(findings []Finding, l Level) int {
	n := 0
	for _, f := range findings {
		if f.Level == l {
			n++
		}
	}
	return n
}

// listed joins names for a sentence. It names at most five and counts the others.
func listed(names []string) string {
	const shown = 5
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	if len(names) > shown {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
	}
	return strings.Join(names, ", ")
}

// versionNumbers returns the first numbers of a version, at most three: 1, 30, 4 for v1.30.4-eks.
// It returns nil if text is not a version.
func versionNumbers(text string) []int {
	text = strings.TrimPrefix(text, "v")
	var out []int
	for len(out) < 3 {
		n, digits := 0, 0
		for digits < len(text) && digits < 6 && text[digits] >= '0' && text[digits] <= '9' {
			n = n*10 + int(text[digits]-'0')
			digits++
		}
		if digits == 0 {
			return out
		}
		out, text = append(out, n), text[digits:]
		if !strings.HasPrefix(text, ".") {
			return out
		}
		text = text[1:]
	}
	return out
}

// older reports whether a version is older than major.minor. known is false if text is not a
// version.
func older(text string, major, minor int) (old, known bool) {
	v := versionNumbers(text)
	if len(v) < 2 {
		return false, false
	}
	return v[0] < major || v[0] == major && v[1] < minor, true
}
