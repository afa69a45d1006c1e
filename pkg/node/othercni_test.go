package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

func TestOtherCNI(t *testing.T) {
	for name, tt := range map[string]struct {
		files map[string]string
		// refused is the plugin that the refusal names before ours is installed; "" without a
		// refusal.
		refused string
	}{
		"an empty folder": {nil, ""},
		"one that sorts after": {map[string]string{
			"10-flannel.conflist": `{"plugins":[{"type":"flannel"}]}`}, ""},
		"one that sorts before": {map[string]string{
			"00-calico.conflist": `{"plugins":[{"type":"calico"},{"type":"portmap"}]}`},
			"00-calico.conflist (calico)"},
		"of the old form": {map[string]string{"00-net.conf": `{"type":"bridge"}`},
			"00-net.conf (bridge)"},
		"of no form": {map[string]string{"00-net.json": `{`},
			"00-net.json (malformed)"},
		"a delegating one": {map[string]string{
			"00-multus.conf": `{"type":"multus-shim"}`}, ""},
		"no configuration": {map[string]string{"00-README": "x",
			"00-x.conflist.bak": "x"}, ""},
		"a link that leads nowhere": {map[string]string{"00-gone.conf": ""},
			"00-gone.conf (unreadable)"},
		"control characters in type": {map[string]string{"00-net.conf": `{"type":"\u001b[31m"}`},
			"00-net.conf (malformed)"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range tt.files {
				path := filepath.Join(dir, file)
				write := func() error { return os.WriteFile(path, []byte(text), 0o644) }
				if text == "" {
					write = func() error { return os.Symlink("nowhere", path) }
				}
				errtest.Must(t, write())
			}

			err := checkOtherCNI(dir)
			if (err != nil) != (tt.refused != "") ||
				err != nil && !strings.Contains(err.Error(), tt.refused) {
				t.Errorf("got %v, want %q", err, tt.refused)
			}
			filetest.Write(t, filepath.Join(dir, abi.ConflistName), nil,
				0o644)
			if err := checkOtherCNI(dir); err != nil {
				t.Errorf("where ours is installed: %v", err)
			}
			if n := len(OtherCNI(dir)); (n > 0) != (tt.refused != "") {
				t.Errorf("%d problems are shown", n)
			}
		})
	}

	if out := OtherCNI(filepath.Join(t.TempDir(), "nowhere")); out != nil {
		t.Errorf("no folder: %v", out)
	}
}

func FuzzPluginType(f *testing.F) {
	f.Add([]byte(`{"plugins":[{"type":"flannel"}]}`))
	f.Add([]byte(`{"type":1}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if pluginType(text) == "" {
			t.Error("a plugin without a name")
		}
	})
}
