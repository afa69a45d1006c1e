package remote

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What is wrong with a kubeconfig that was named is said of that file.
func TestOpenNamesTheFile(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct{ file, want string }{
		"an empty file":  {empty, "kubeconfig " + empty + " is empty"},
		"a missing file": {empty + "x", "kubeconfig " + empty + "x does not exist"},
		"none was named": {"", "no kubeconfig: name one with -kubeconfig"},
	} {
		t.Run(name, func(t *testing.T) {
			a := Access{Kubeconfig: tt.file}
			if _, err := a.Open(); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}
