package planner

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// Revision returns a hash of the policies that were put: of their names, UIDs and generations. It
// depends on nothing else, so all nodes with the same policies return the same hash. It takes time
// in proportion to the number of policies.
func (p *Planner) Revision() string {
	var lines []string
	add := func(name string, o policy.Object) {
		lines = append(lines, fmt.Sprintf("%q %q %d", name, o.UID, o.Generation))
	}
	for _, of := range p.policies {
		for _, c := range of {
			add(c.Policy.Name.String(), c.Policy.Object)
		}
	}
	for name, c := range p.cluster {
		add(clusterName(name), c.Policy.Object)
	}

	slices.Sort(lines)
	sum := sha256.Sum256([]byte(strings.Join(lines, "\n")))
	return hex.EncodeToString(sum[:6])
}

// Count returns the number of policies.
func (p *Planner) Count() int {
	n := len(p.cluster)
	for _, of := range p.policies {
		n += len(of)
	}
	return n
}
