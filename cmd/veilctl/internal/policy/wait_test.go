package policy

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb/verbtest"
	"github.com/kubeveil/kubeveil/pkg/policy/keeper"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/telemetry/admin"
)

// A node that enforces the revision does not list the policies. Another node lists them before it
// gives up, because the policies may have changed after the revision was computed.
func TestPolicyWaitComparesARevisionBeforeItLists(t *testing.T) {
	var listed keeper.Progress
	compared, lists := 0, 0
	socket := verbtest.Daemon(t, telemetry.Status{}, true, map[string]admin.Page{
		telemetry.PolicyProgressPath: func(r *http.Request) (any, error) {
			revision := r.FormValue("revision")
			if revision == "" {
				lists++
				return listed, nil
			}
			compared++
			return keeper.Progress{Node: "node-1", Enforced: revision == "r&1", Policies: 3,
				Missing: []string{"another revision"}}, nil
		},
	})

	enforced := keeper.Progress{Node: "node-1", Enforced: true, Policies: 4}
	late := keeper.Progress{Node: "node-1", Missing: []string{"shop/web was not received yet"}}
	for name, c := range map[string]struct {
		args   string
		listed keeper.Progress
		lists  bool
		want   string
		status int
	}{
		"the revision": {"--revision r&1", late, false, "enforces all 3 policies", verb.ExitOK},
		"a newer list": {"--revision r0 --timeout 1ms", enforced, true, "all 4 policies",
			verb.ExitOK},
		"late": {"--revision r0 --timeout 1ms", late, true, "shop/web was not",
			verb.ExitWrong},
		"without revision": {"", enforced, true, "all 4 policies", verb.ExitOK},
		"of a cluster": {"--revision r0 --cluster", late, false, "leave it out",
			verb.ExitUsage},
	} {
		t.Run(name, func(t *testing.T) {
			listed, compared, lists = c.listed, 0, 0
			var out bytes.Buffer
			err := run(t.Context(), strings.Fields("policy wait "+c.args+" --socket "+socket), &out,
				io.Discard)
			if err != nil {
				out.WriteString(err.Error())
			}
			if verb.ExitStatus(err) != c.status || !strings.Contains(out.String(), c.want) {
				t.Errorf("exit status %d, %q, want %d, %q", verb.ExitStatus(err), out.String(),
					c.status, c.want)
			}
			compares := strings.Contains(c.args, "--revision") && c.status != verb.ExitUsage
			if lists > 0 != c.lists || compared > 0 != compares {
				t.Errorf("it listed %d and compared %d times", lists, compared)
			}
		})
	}
}

// The namespace reaches veild with the revision, and with the list that follows.
func TestPolicyWaitNamesItsNamespace(t *testing.T) {
	socket := verbtest.Daemon(t, telemetry.Status{}, true, map[string]admin.Page{
		telemetry.PolicyProgressPath: func(r *http.Request) (any, error) {
			p := keeper.Progress{Node: "node-1", Policies: 2, Missing: []string{"evil is late"}}
			p.Enforced = r.FormValue("namespace") == "shop" && r.FormValue("revision") == ""
			return p, nil
		},
	})
	for args, want := range map[string]string{
		"--namespace shop --revision r1": "enforces all 2 policies of namespace shop",
		"-n shop":                        "enforces all 2 policies of namespace shop",
		"--timeout 1ms":                  "evil is late",
	} {
		var out bytes.Buffer
		err := run(t.Context(), strings.Fields("policy wait "+args+" --socket "+socket), &out,
			io.Discard)
		if err != nil {
			out.WriteString(err.Error())
		}
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s: %q, want %q", args, out.String(), want)
		}
	}
}
