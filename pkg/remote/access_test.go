package remote

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
)

// An error about a named kubeconfig names that file.
func TestOpenNamesTheFile(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	empty := filepath.Join(t.TempDir(), "empty")
	filetest.Write(t, empty, nil, 0o600)
	two := filepath.Join(t.TempDir(), "two")
	filetest.Write(t, two, []byte("clusters: [{name: c, cluster: {server: 'https://198.18.0.2'}}]\n"+
		"contexts: [{name: b, context: {cluster: c}}, {name: a, context: {cluster: c}}]\n"), 0o600)
	for name, tt := range map[string]struct{ file, context, want string }{
		"an empty file":                  {empty, "", "kubeconfig " + empty + " is empty"},
		"a missing file":                 {empty + "x", "", "kubeconfig " + empty + "x does not exist"},
		"none was named":                 {"", "", "no kubeconfig: name one with --kubeconfig"},
		"none was named, with a context": {"", "prod", "no kubeconfig: name one with --kubeconfig"},
		"a context of an empty file": {empty, "prod",
			"kubeconfig " + empty + ` has no contexts, so it has no context "prod"`},
		"a missing context": {two, "prod",
			`no context "prod": name one of its contexts (a, b) with --context`},
	} {
		t.Run(name, func(t *testing.T) {
			a := Access{Kubeconfig: tt.file, Context: tt.context}
			if _, err := a.Open(); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// Messages of client-go, for instance about a stream that ended, do not mix with the output of the
// command.
func TestClientsAreSilent(t *testing.T) {
	written, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	errtest.Must(t, err)
	defer written.Close()
	stderr := os.Stderr
	os.Stderr = written
	defer func() { os.Stderr = stderr }()
	if _, err := New(&rest.Config{Host: "https://198.18.0.2:6443"}); err != nil {
		t.Fatal(err)
	}
	klog.Background().Error(os.ErrClosed, "Copying stderr failed")
	klog.ErrorS(os.ErrClosed, "Copying stderr failed")
	klog.Flush()
	if text, err := os.ReadFile(written.Name()); err != nil || len(text) > 0 {
		t.Errorf("standard error has %q (%v)", text, err)
	}
}
