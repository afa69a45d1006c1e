package cyclonus_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/policy"
)

// document is the output of hack/tools/cyclonus, which describes its fields.
type document struct {
	Ports     []uint16
	Protocols []corev1.Protocol
	Cases     []testCase
}

type testCase struct {
	Description string
	Tags        []string
	Steps       []step
}

// String returns the name of the case in messages; descriptions are not unique.
func (c testCase) String() string {
	return fmt.Sprintf("%s [%s]", c.Description, strings.Join(c.Tags, " "))
}

type step struct {
	Namespaces []corev1.Namespace
	Pods       []corev1.Pod
	Policies   []networkingv1.NetworkPolicy
	Verdicts   string
}

// families are the families of pods' addresses, with the flags of the program.
var families = []struct {
	name  string
	flags []string
}{{"IPv4", nil}, {"IPv6", []string{"-6"}}}

// program builds hack/tools/cyclonus, and returns its path.
func program(t *testing.T) string {
	t.Helper()
	return nettest.BuildTool(t, "../../../..", "cyclonus", ".")
}

// cases returns all cases of cyclonus.
func cases(t *testing.T, program string, flags ...string) (d document) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, flags...).Output()
	if err != nil {
		t.Fatalf("%s: %v", program, err)
	}
	errtest.Must(t, json.Unmarshal(out, &d))

	for _, c := range d.Cases {
		for _, s := range c.Steps {
			if n := len(s.Pods) * len(s.Pods) * len(d.Ports) * len(d.Protocols); len(s.Verdicts) != n {
				t.Fatalf("%s: %d verdicts of %d flows", c, len(s.Verdicts), n)
			}
		}
	}
	if len(d.Cases) < 200 {
		t.Fatalf("%d cases, want all", len(d.Cases))
	}
	return d
}

var protocols = map[corev1.Protocol]policy.Proto{corev1.ProtocolTCP: policy.TCP,
	corev1.ProtocolUDP: policy.UDP, corev1.ProtocolSCTP: policy.SCTP}

// question is a flow between two pods, with cyclonus' verdict.
type question struct {
	from, to *corev1.Pod
	src, dst netip.Addr
	proto    policy.Proto
	port     uint16
	// deniedBy reports by policy.Direction whether policies deny the flow.
	deniedBy [2]bool
}

// String returns the flow for messages.
func (q question) String() string {
	return fmt.Sprintf("%s/%s (%s) to %s/%s (%s) %s %d", q.from.Namespace, q.from.Name, q.src,
		q.to.Namespace, q.to.Name, q.dst, q.proto, q.port)
}

// denied reports whether cyclonus denies the flow.
func (q question) denied() bool { return q.deniedBy[policy.Ingress] || q.deniedBy[policy.Egress] }

// questions returns all flows of a step.
func (d document) questions(s step) (out []question) {
	addrs := make([]netip.Addr, len(s.Pods))
	for i, p := range s.Pods {
		addrs[i] = netip.MustParseAddr(p.Status.PodIP)
	}
	letters := s.Verdicts
	for i := range s.Pods {
		for j := range s.Pods {
			for _, port := range d.Ports {
				for _, proto := range d.Protocols {
					q := question{from: &s.Pods[i], to: &s.Pods[j], src: addrs[i], dst: addrs[j],
						proto: protocols[proto], port: port}
					q.deniedBy[policy.Egress] = letters[0] == 'e' || letters[0] == 'b'
					q.deniedBy[policy.Ingress] = letters[0] == 'i' || letters[0] == 'b'
					letters = letters[1:]
					out = append(out, q)
				}
			}
		}
	}
	return out
}

// differences are flows for which the answers of Kubernetes and cyclonus differ.
var differences = []struct {
	what, reason string
	// of changes cyclonus' answer to what Kubernetes defines. It returns false if they are the
	// same.
	of func(q *question) bool
}{
	{"a pod to its own address", "the API defines that a pod's own traffic is always allowed; " +
		"cyclonus judges it by the policies, and its -ignore-loopback leaves it out",
		func(q *question) bool {
			different := q.src == q.dst && q.denied()
			if different {
				q.deniedBy = [2]bool{}
			}
			return different
		}},
}

// answers returns the flows of a step with the verdicts that Kubernetes defines, and counts the
// differences.
func (d document) answers(s step, counts map[string]int) []question {
	all := d.questions(s)
	for i := range all {
		for _, difference := range differences {
			if difference.of(&all[i]) {
				counts[difference.what]++
			}
		}
	}
	return all
}
