package main

import (
	"bytes"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/keeper"
)

func TestPodsAreCompleted(t *testing.T) {
	pods := " --socket " + policyDaemon(t, keeper.List{Listed: true, Policies: []policy.PolicyView{
		{Policy: "shop/web", Pods: []string{"shop/web", "shop/db"}},
		{Policy: "shop/all", Pods: []string{"shop/web"}}}})
	for name, tt := range map[string]struct{ args, want string }{
		"a pod":                     {"policy show" + pods + " ", "shop/db\nshop/web\n:4"},
		"the second end of a trace": {"policy trace" + pods + " shop/web ", "shop/db\n:4"},
		"no third end":              {"policy trace" + pods + " shop/web shop/db ", ":4"},
		"no daemon": {"policy show --socket " + filepath.Join(t.TempDir(), "none") + " ",
			":4"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := completed(t, tt.args); got != tt.want {
				t.Errorf("completed to %q, want %q", got, tt.want)
			}
		})
	}
}

// completed returns what a shell gets for a command line.
func completed(t *testing.T, line string) string {
	t.Helper()
	var out bytes.Buffer
	args := append([]string{"__complete"}, strings.Split(line, " ")...)
	if err := run(t.Context(), args, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out.String())
}

func TestNoVolumeIsCompletedWithoutAnAPIServer(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "config")
	filetest.Write(t, kubeconfig, []byte(`clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: c, context: {cluster: c}}]
current-context: c
`), 0o600)
	for _, verb := range []string{"show", "destroy", "recover", "rewrap"} {
		if got := completed(t, "volume "+verb+" --kubeconfig "+kubeconfig+" "); got != ":4" {
			t.Errorf("%s is completed to %q", verb, got)
		}
	}
}
