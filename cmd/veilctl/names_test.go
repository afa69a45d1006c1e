package main

import (
	"bytes"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/filetest"
)

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
