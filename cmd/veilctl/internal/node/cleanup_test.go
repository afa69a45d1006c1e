package node

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// A broken configuration must not prevent the removal of Kubeveil from a node.
func TestCleanupWorksWithABrokenConfiguration(t *testing.T) {
	const good = "node: a\nclusterRanges: [10.244.0.0/16]\nserviceRanges: [10.96.0.0/12]\ncni: " +
		"{confDir: /etc/other}\n"
	for name, tt := range map[string]struct {
		text    string // nothing: no file is named
		confDir string
		says    string
	}{
		"no file":     {"", abi.CNIConfDir, ""},
		"a good file": {good, "/etc/other", ""},
		"a typo":      {good + "mtuu: 3\n", abi.CNIConfDir, "mtuu: unknown key"},
		"no YAML":     {"a: [", abi.CNIConfDir, "cleaning up with the defaults"},
	} {
		t.Run(name, func(t *testing.T) {
			file := ""
			if tt.text != "" {
				file = filepath.Join(t.TempDir(), "veild.yaml")
				filetest.Write(t, file, []byte(tt.text), 0o600)
			}

			var said bytes.Buffer
			cfg := cleanupConfig(file, &said)
			if cfg.CNI.ConfDir != tt.confDir || (said.Len() > 0) != (tt.says != "") ||
				!strings.Contains(said.String(), tt.says) {
				t.Errorf("it cleans %s, and says %q", cfg.CNI.ConfDir, &said)
			}
		})
	}
}
