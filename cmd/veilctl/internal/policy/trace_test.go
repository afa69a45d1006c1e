package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb/verbtest"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/keeper"
	"github.com/kubeveil/kubeveil/pkg/policy/keeper/trace"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/telemetry/admin"
)

// traceDaemon is a veild that answers each trace with answer. It stores the query of the last one.
func traceDaemon(t *testing.T, answer trace.Trace, query *string) string {
	t.Helper()
	return verbtest.Daemon(t, telemetry.Status{}, true, map[string]admin.Page{
		telemetry.PolicyTracePath: func(r *http.Request) (any, error) {
			*query = r.URL.RawQuery
			return answer, nil
		},
	})
}

func webTrace(ingress trace.Side) trace.Trace {
	ingress.Direction, ingress.Pod, ingress.Here = "ingress", "shop/web", true
	return trace.Trace{Node: "node-1", From: "shop/client", To: "shop/web",
		Differs: ingress.Differs, Paths: []trace.Path{{
			From: netip.MustParseAddr("198.18.2.9"), To: netip.MustParseAddr("198.18.1.2"),
			Sides: []trace.Side{{Direction: "egress", Pod: "shop/client",
				Why: "node node-2 decides it: run the command there"}, ingress}}}}
}

func TestPolicyTrace(t *testing.T) {
	for name, c := range map[string]struct {
		side   trace.Side
		want   []string
		status int
	}{
		"allowed": {trace.Side{Plan: "allow", Kernel: "allow", Rule: "in_c1: x return",
			Isolating: []string{"shop/deny", "shop/web"}, Allowing: []string{"shop/web"}},
			[]string{"by node node-1: allowed here; another node also decides",
				"egress   shop/client  elsewhere  elsewhere  node node-2 decides it",
				"ingress  shop/web     allow      allow      allowed by shop/web",
				"ingress decided by in_c1: x return"}, verb.ExitOK},
		"denied": {trace.Side{Plan: "policy_ingress", Kernel: "policy_ingress",
			Isolating: []string{"shop/deny"}, Why: "no rule of these policies allows it"},
			[]string{": denied\n", "isolated by shop/deny; no rule of these policies allows it"},
			verb.ExitOK},
		"different": {trace.Side{Plan: "policy_ingress", Kernel: "allow", Differs: true},
			[]string{"ERROR ingress: the plan decides policy_ingress, the kernel allow"},
			verb.ExitWrong},
	} {
		t.Run(name, func(t *testing.T) {
			var query string
			socket := traceDaemon(t, webTrace(c.side), &query)
			var out bytes.Buffer
			err := run(t.Context(), strings.Fields("policy trace shop/client shop/web -p TCP/8080 "+
				"--socket "+socket), &out, io.Discard)
			if got := verb.ExitStatus(err); got != c.status {
				t.Errorf("exit status %d (%v), want %d", got, err, c.status)
			}
			for _, want := range c.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("no %q in:\n%s", want, &out)
				}
			}
			if want := "from=shop%2Fclient&port=8080&protocol=6&to=shop%2Fweb"; query != want {
				t.Errorf("asked %q, want %q", query, want)
			}
		})
	}
}

func TestPolicyTraceForPrograms(t *testing.T) {
	var query string
	socket := traceDaemon(t, webTrace(trace.Side{Plan: "allow", Differs: true}), &query)
	var out bytes.Buffer
	err := run(t.Context(), strings.Fields("policy trace shop/client 198.18.1.2 -p icmp -o json "+
		"--socket "+socket), &out, io.Discard)
	if verb.ExitStatus(err) != verb.ExitWrong || !json.Valid(out.Bytes()) ||
		!strings.Contains(out.String(), `"differs": true`) {
		t.Errorf("%v: %s", err, &out)
	}
	if !strings.Contains(query, "port=0&protocol=1") {
		t.Errorf("asked %q for ICMP", query)
	}
}

func TestPolicyTraceOfAnError(t *testing.T) {
	var query string
	socket := traceDaemon(t, webTrace(trace.Side{Plan: "policy_related"}), &query)
	err := run(t.Context(), strings.Fields("policy trace shop/mute shop/client --error-about shop/web "+
		"--socket "+socket), io.Discard, io.Discard)
	if want := "about=shop%2Fweb&from=shop%2Fmute&port=0&protocol=1&to=shop%2Fclient"; err != nil ||
		query != want {
		t.Errorf("%v: asked %q, want %q", err, query, want)
	}
}

func TestPolicyTraceRefusesBadInput(t *testing.T) {
	for args, want := range map[string]string{
		"a/b -p tcp/80":                       "name two ends",
		"a/b c/d e/f -p tcp/80":               "name two ends",
		"a/b c/d":                             "name the port: -p tcp/8080",
		"web a/b -p tcp/80":                   `"web" is neither a pod nor an address`,
		"a/b c/d/e -p tcp/80":                 "write NAMESPACE/NAME",
		"a/b c/d -p 8080":                     "write tcp/8080, udp/53",
		"a/b c/d -p http/80":                  "write tcp/8080, udp/53",
		"a/b c/d -p tcp":                      "a port from 1 to 65535, such as tcp/8080",
		"a/b c/d -p tcp/http":                 "a port from 1 to 65535",
		"a/b c/d --error-about x":             `"x" is neither a pod nor an address`,
		"a/b c/d -p tcp/80 --error-about e/f": "leave out -p tcp/80",
		"a/b c/d -p udp/0":                    "a port from 1 to 65535, such as udp/8080",
		"a/b c/d -p udp/65536":                "a port from 1 to 65535",
		"a/b c/d -port tcp/80":                "write --port",
		"a/b c/d -p tcp/80 -o no":             "write table or json",
	} {
		err := run(t.Context(), strings.Fields("policy trace "+args), io.Discard, io.Discard)
		if verb.ExitStatus(err) != verb.ExitUsage || err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

func TestPolicyWait(t *testing.T) {
	var answers []keeper.Progress
	socket := verbtest.Daemon(t, telemetry.Status{}, true, map[string]admin.Page{
		telemetry.PolicyProgressPath: func(*http.Request) (any, error) {
			if len(answers) == 0 {
				return nil, errors.New("policy is none")
			}
			next := answers[0]
			if len(answers) > 1 {
				answers = answers[1:]
			}
			return next, nil
		},
	})
	late := keeper.Progress{Node: "node-1", Missing: []string{"shop/web was not received yet"}}
	done := keeper.Progress{Node: "node-1", Enforced: true, Policies: 3}

	for name, c := range map[string]struct {
		answers []keeper.Progress
		args    string
		want    string
		status  int
	}{
		"at once": {[]keeper.Progress{done}, "",
			"Node node-1 enforces all 3 policies of the API server.", verb.ExitOK},
		"after some": {[]keeper.Progress{late, late, done}, "-o json", `"enforced": true`,
			verb.ExitOK},
		"never": {[]keeper.Progress{late}, "--timeout 1ms",
			"not enforced after 1ms: shop/web was not received yet", verb.ExitWrong},
		"none": {nil, "", "policy is none", verb.ExitWrong},
		"a kubeconfig that is missing": {nil, "--cluster --kubeconfig /nonexistent/config",
			"/nonexistent/config", verb.ExitWrong},
		"no time":   {nil, "--timeout 0s", "write a time above 0, such as 30s", verb.ExitUsage},
		"no number": {nil, "--timeout soon", "write a time with its unit", verb.ExitUsage},
	} {
		t.Run(name, func(t *testing.T) {
			answers = c.answers
			var out bytes.Buffer
			err := run(t.Context(), strings.Fields("policy wait "+c.args+" --socket "+socket), &out,
				io.Discard)
			if got := verb.ExitStatus(err); got != c.status {
				t.Errorf("exit status %d (%v), want %d", got, err, c.status)
			}
			said := out.String()
			if err != nil {
				said += err.Error()
			}
			if !strings.Contains(said, c.want) {
				t.Errorf("no %q in %q", c.want, said)
			}
		})
	}
}

func TestParsePort(t *testing.T) {
	for text, want := range map[string]policy.Proto{"tcp/1": policy.TCP, "udp/65535": policy.UDP,
		"SCTP/9": policy.SCTP, "ICMP": 1} {
		if proto, port, err := parsePort(text); err != nil || proto != want ||
			(port == 0) != (want == 1) {
			t.Errorf("%s: %v %d, %v", text, proto, port, err)
		}
	}
}
