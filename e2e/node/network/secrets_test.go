package network_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// noSecrets fails the test when a private key of a node is in any artefact of the run: logs of all
// programs, CNI included, files on the disks, metrics, status. earlier holds former keys of nodes,
// by any name. Call it before the lab ends.
func noSecrets(ctx context.Context, t *testing.T, l *lab.Lab, earlier map[string][]byte) {
	t.Helper()
	keys := map[string][]byte{}
	maps.Copy(keys, earlier)

	for _, n := range l.Nodes() {
		key, err := readKey(n)
		if err != nil {
			t.Errorf("secrets: %v", err)
			continue
		}
		keys[n.Name] = key
		s, err := json.Marshal(nodetest.NodeStatus(ctx, t, n))
		errtest.Must(t, err)
		for what, text := range map[string][]byte{"status.json": s,
			"metrics.txt": []byte(nodeMetrics(ctx, t, n))} {
			filetest.Write(t, filepath.Join(n.Dir, what), text, 0o644)
		}
	}

	files, found, err := findSecrets(l.Dir, keys)
	if err != nil {
		t.Errorf("secrets: %v", err)
	}
	// The artefacts of a control plane are in the folder of the lab that started it.
	if elsewhere, err := os.Readlink(filepath.Join(l.Dir, "control")); err == nil {
		more, there, err := findSecrets(elsewhere, keys)
		if err != nil {
			t.Errorf("secrets: %v", err)
		}
		files, found = files+more, append(found, there...)
	}

	for _, f := range found {
		t.Errorf("secret: %s", f)
	}

	if files < 3*len(keys) {
		t.Errorf("secrets: only %d files were searched", files)
	}

	t.Logf("no trace of %d private keys in %d files", len(keys), files)
}

// readKey reads a node's private key.
func readKey(n *lab.Node) ([]byte, error) {
	text, err := os.ReadFile(n.Path(abi.KeyFile))
	if err != nil {
		return nil, err
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(text)))
	if err == nil && len(key) != 32 {
		err = fmt.Errorf("%d bytes", len(key))
	}
	if err != nil {
		return nil, fmt.Errorf("key of %s: %w", n.Name, err)
	}
	return key, nil
}

// forms returns the ways in which a key might be written.
func forms(key []byte) map[string][]byte {
	return map[string][]byte{
		"raw":        key,
		"base64":     []byte(strings.TrimRight(base64.StdEncoding.EncodeToString(key), "=")),
		"base64 URL": []byte(base64.RawURLEncoding.EncodeToString(key)),
		"hex":        []byte(hex.EncodeToString(key)),
		"HEX":        bytes.ToUpper([]byte(hex.EncodeToString(key))),
		"go list":    []byte(strings.Trim(fmt.Sprint(key), "[]")),
	}
}

// findSecrets searches all files of a folder and returns what it found where.
func findSecrets(dir string, keys map[string][]byte) (files int, found []string, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files++
		for name, key := range keys {
			for form, text := range forms(key) {
				if bytes.Contains(b, text) {
					found = append(found, fmt.Sprintf("the private key of %s, %s, in %s", name,
						form, path))
				}
			}
		}
		return nil
	})
	return files, found, err
}

// The negative control: a written key is found in each form.
func TestSecretsAreFound(t *testing.T) {
	key := bytes.Repeat([]byte{0xfb, 0xef, 0x01, 0x77}, 8)
	for form, text := range forms(key) {
		t.Run(form, func(t *testing.T) {
			dir := t.TempDir()
			line := append(append([]byte("level=DEBUG msg=peer key="), text...), " more\n"...)
			filetest.Write(t, filepath.Join(dir, "veild.log"), line, 0o600)
			files, found, err := findSecrets(dir, map[string][]byte{"node-1": key})
			if err != nil || files != 1 || len(found) == 0 {
				t.Errorf("%d files, found %v, %v", files, found, err)
			}
		})
	}
}
