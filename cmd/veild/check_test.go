package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/commandline"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/pkg/config"
)

// The check returns an error if the test's machine lacks something. This test ignores the error.
func TestCheckPrintsItsNotes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "veild.yaml")
	filetest.Write(t, file, []byte("cni: {confDir: /proc/sys/net}\n"), 0o600)
	fs := commandline.New("veild check")
	flags := config.RegisterFlags(fs)
	if err := fs.Parse([]string{"--config", file}); err != nil {
		t.Fatal(err)
	}

	var out strings.Builder
	err := check(&out, flags)

	const note = "warning: the protection of /proc/sys/net cannot be read"
	if !strings.Contains(out.String(), note) {
		t.Errorf("it prints %q and returns %v, without %q", out.String(), err, note)
	}
}
