package remote

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/kubeveil/kubeveil/internal/filetest"
)

// An error about a named kubeconfig names that file.
func TestOpenNamesTheFile(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	empty := filepath.Join(t.TempDir(), "empty")
	filetest.Write(t, empty, nil, 0o600)
	for name, tt := range map[string]struct{ file, want string }{
		"an empty file":  {empty, "kubeconfig " + empty + " is empty"},
		"a missing file": {empty + "x", "kubeconfig " + empty + "x does not exist"},
		"none was named": {"", "no kubeconfig: name one with --kubeconfig"},
	} {
		t.Run(name, func(t *testing.T) {
			a := Access{Kubeconfig: tt.file}
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
	if err != nil {
		t.Fatal(err)
	}
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
