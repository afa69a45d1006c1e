package largeobject

import (
	"fmt"
	"strings"
)

// Labels returns the titles of the cases, keyed by name. large is the number of large objects.
func Labels(large int) map[string]string {
	out := map[string]string{}
	for _, f := range swollenFields {
		for _, way := range readWays {
			name := caseOf(f.name, way.name)
			out[name] = fmt.Sprintf("%d objects of 1.4 MB with many %s, %s: peak of veild's "+
				"resident memory", large, f.what, way.what)
			edit := fmt.Sprintf("another namespace's object edited beside %d objects with "+
				"many %s, %s: ", large, f.what, way.what)
			out[name+suffixWatch] = edit + "until the API server sent it"
			out[name+suffixEdit] = edit + "from then until it is in force"
		}
	}
	return out
}

// IsReported reports whether a case is only reported and has no gate: the time of the API server.
func IsReported(name string) bool { return strings.HasSuffix(name, suffixWatch) }
