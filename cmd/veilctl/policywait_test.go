package main

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/policy/keeper"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// A node that enforces the revision lists nothing. Another one lists before it gives up, since the
// policies may have changed after the revision was.
func TestPolicyWaitComparesARevisionBeforeItLists(t *testing.T) {
	var listed keeper.Progress
	compared, lists := 0, 0
	socket := daemonWith(t, telemetry.Status{}, true, map[string]telemetry.Page{
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
	late := keeper.Progress{Node: "node-1", Missing: []string{"shop/web was not seen yet"}}
	for name, c := range map[string]struct {
		args   string
		listed keeper.Progress
		lists  bool
		want   string
		status int
	}{
		"the revision":     {"--revision r&1", late, false, "enforces the policies", exitOK},
		"a newer list":     {"--revision r0 --timeout 1ms", enforced, true, ", 4.", exitOK},
		"late":             {"--revision r0 --timeout 1ms", late, true, "shop/web was not", exitWrong},
		"without revision": {"", enforced, true, ", 4.", exitOK},
		"of a cluster":     {"--revision r0 --cluster", late, false, "leave it out", exitUsage},
	} {
		t.Run(name, func(t *testing.T) {
			listed, compared, lists = c.listed, 0, 0
			var out bytes.Buffer
			err := run(t.Context(), strings.Fields("policy wait "+c.args+" --socket "+socket), &out,
				io.Discard)
			if err != nil {
				out.WriteString(err.Error())
			}
			if exitStatus(err) != c.status || !strings.Contains(out.String(), c.want) {
				t.Errorf("exit status %d, %q, want %d, %q", exitStatus(err), out.String(), c.status,
					c.want)
			}
			if compares := strings.Contains(c.args, "--revision") && c.status != exitUsage; lists > 0 !=
				c.lists || compared > 0 != compares {
				t.Errorf("it listed %d and compared %d times", lists, compared)
			}
		})
	}
}
