package agent

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/kubeveil/kubeveil/internal/atomicfile"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/config"
)

// conflistPath is where the CNI configuration goes.
func conflistPath(confDir string) string { return filepath.Join(confDir, abi.ConflistName) }

// writeConflist writes the CNI configuration where it differs and says whether
// it did.
func writeConflist(cfg config.Config, d decision) (changed bool, err error) {
	text, err := abi.Conflist(abi.ConflistParams{
		MTU: d.podMTU, PodPrefixes: d.podPrefixes, IPAMDir: abi.IPAMDir,
		Portmap: cfg.CNI.Portmap, Bandwidth: cfg.CNI.Bandwidth,
	})
	if err != nil {
		return false, err
	}
	path := conflistPath(cfg.CNI.ConfDir)
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, text) {
		return false, nil
	}
	if err := os.MkdirAll(cfg.CNI.ConfDir, 0o755); err != nil {
		return false, conflistError(path, err)
	}
	if err := atomicfile.Write(path, text, 0o644); err != nil {
		return false, conflistError(path, err)
	}
	return true, nil
}

func conflistError(path string, err error) error {
	if errors.Is(err, syscall.EROFS) || errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("write CNI configuration %s: %w: make the directory writable for veild, "+
			"or set cni.confDir to the one that the runtime reads", path, err)
	}
	return fmt.Errorf("write CNI configuration %s: %w", path, err)
}

// removeConflist takes the CNI configuration away; that it is not there is no error.
func removeConflist(confDir string) (took []string, err error) {
	path := conflistPath(confDir)
	switch err := os.Remove(path); {
	case errors.Is(err, os.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("remove CNI configuration: %w", err)
	}
	return []string{"CNI configuration " + path}, nil
}
