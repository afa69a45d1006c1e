package conformance

import (
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/e2e/conformance/upstream"
)

// SCTP is an optional feature that the lab's nodes have.
func TestSCTPIsRun(t *testing.T) {
	r := newReport(Network(), allSpecs(t), labFacts)
	for _, want := range []string{
		"Networking Granular Checks: Pods should function for intra-pod communication: sctp " +
			"[LinuxOnly] [Feature:SCTPConnectivity]",
		"Networking Granular Checks: Services should function for pod-Service: sctp " +
			"[Feature:SCTPConnectivity]",
		"Networking should allow creating a Pod with an SCTP HostPort [LinuxOnly] [Serial]",
	} {
		if !slices.Contains(r.todo, upstream.Group+" "+want) {
			t.Errorf("%q is not run", want)
		}
	}
	for _, v := range r.Verdicts() {
		if strings.Contains(v.Name, "[Feature:SCTPConnectivity]") &&
			!strings.Contains(v.Name, "[Feature:NetworkPolicy]") {
			t.Errorf("%q is left out: %s", v.Name, v.Reason)
		}
	}
}
