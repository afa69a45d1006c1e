package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// ConflistPath returns the path of the CNI configuration.
func ConflistPath(confDir string) string { return filepath.Join(confDir, abi.ConflistName) }

// ConflistError wraps the error of writing the CNI configuration at path. If the directory is not
// writable, the text has the remedy.
func ConflistError(path string, err error) error {
	if errors.Is(err, syscall.EROFS) || errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("write CNI configuration %s: %w: make the directory writable for veild, "+
			"or set cni.confDir to the runtime's", path, err)
	}
	return fmt.Errorf("write CNI configuration %s: %w", path, err)
}

// removeConflist removes the CNI configuration. A missing file is not an error.
func removeConflist(confDir string) (took []string, err error) {
	path := ConflistPath(confDir)
	switch err := os.Remove(path); {
	case errors.Is(err, os.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("remove CNI configuration: %w", err)
	}
	return []string{"CNI configuration " + path}, nil
}
