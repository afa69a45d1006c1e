package conformance

import (
	"fmt"
	"regexp"
)

// Facts are what of a cluster decides which specs can run.
type Facts struct {
	// Nodes are Ready and take pods; Others are not or do not.
	Nodes, Others int
	// DNS says that there is the service kube-dns.
	DNS bool
	// Emulated says that the nodes' processors are made by software.
	Emulated bool
}

// fate is what a reason explains.
type fate int

const (
	// notRun specs are left out.
	notRun fate = iota
	// fails is for specs that run and may fail.
	fails
)

// reason is why specs whose name matches do not pass.
type reason struct {
	fate    fate
	pattern string
	// when limits it to some clusters; nil is all.
	when func(Facts) bool
	why  string

	expr *regexp.Regexp
}

// table is reasons.go, compiled.
var table = compile(reasons)

func compile(reasons []reason) []reason {
	for i := range reasons {
		reasons[i].expr = regexp.MustCompile(reasons[i].pattern)
	}
	return reasons
}

// find gives the first reason of this kind that applies to a spec on such a cluster.
func find(fate fate, spec string, facts Facts) (why string, found bool) {
	for _, r := range table {
		if r.fate == fate && r.expr.MatchString(spec) && (r.when == nil || r.when(facts)) {
			return r.why, true
		}
	}
	return "", false
}

// Unmatched gives the patterns of the table that match none of the specs: the upstream has renamed or removed them.
func Unmatched(specs []string) error {
	for _, r := range table {
		matches := false
		for _, s := range specs {
			matches = matches || r.expr.MatchString(s)
		}
		if !matches {
			return fmt.Errorf("reasons.go: %q matches no spec", r.pattern)
		}
	}
	return nil
}
