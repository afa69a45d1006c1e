package agent

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/config"
)

// Storage does not need the network: what it has on the node must outlive it.
func TestRemoveRunFiles(t *testing.T) {
	for name, tt := range map[string]struct {
		others []string
		left   []string
		// say is what is told of the first time; of the second nothing is.
		say string
	}{
		"the network alone":         {},
		"beside volumes and keys":   {others: []string{"csi/pvc-1.lock", "kms/kms.sock"}, left: []string{"csi", "csi/pvc-1.lock", "kms", "kms/kms.sock"}, say: ", less csi, kms, which others keep there"},
		"beside what nobody knows":  {others: []string{"keys"}, left: []string{"keys"}, say: ", less keys, which others keep there"},
		"beside a half-written key": {others: []string{".key.tmp-123"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "kubeveil")
			ours := []string{"pods/a.json", "ipam/kubeveil/last_reserved_ip.0", "wg/veil0.json", "key", "snapshot.json", "ready", "veild.sock"}
			for _, f := range slices.Concat(ours, tt.others) {
				path := filepath.Join(dir, f)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for _, want := range [][]string{{dir + tt.say}, nil} {
				if said, err := removeRunFiles(dir); err != nil || !slices.Equal(said, want) {
					t.Errorf("it says %q, want %q: %v", said, want, err)
				}
			}
			var left []string
			err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
				if path != dir {
					left = append(left, path[len(dir)+1:])
				}
				if os.IsNotExist(err) {
					return nil
				}
				return err
			})
			if err != nil || !slices.Equal(left, tt.left) {
				t.Errorf("left %q, want %q: %v", left, tt.left, err)
			}
		})
	}
}

func TestRunFilesAreInRunDir(t *testing.T) {
	for _, f := range runFiles {
		if filepath.Dir(f) != config.RunDir {
			t.Errorf("%s is not in %s", f, config.RunDir)
		}
	}
}
