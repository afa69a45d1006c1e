package node

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"

	"github.com/kubeveil/kubeveil/internal/atomicfile"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/config"
)

// ConflistPath returns the path of the CNI configuration.
func ConflistPath(confDir string) string { return filepath.Join(confDir, abi.ConflistName) }

// WriteConflist writes the CNI configuration if it differs, and reports whether it did. mtu is the
// MTU of pods, and podPrefixes are the prefixes of their addresses.
func WriteConflist(cfg config.Config, mtu int, podPrefixes []netip.Prefix) (changed bool, err error) {
	text, err := abi.Conflist(abi.ConflistParams{
		MTU: mtu, PodPrefixes: podPrefixes, IPAMDir: abi.IPAMDir,
		Portmap: cfg.CNI.Portmap, Bandwidth: cfg.CNI.Bandwidth,
	})
	if err != nil {
		return false, err
	}
	path := ConflistPath(cfg.CNI.ConfDir)
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

// conflistError wraps the error of writing the CNI configuration at path. If the directory is not
// writable, the text has the remedy.
func conflistError(path string, err error) error {
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
