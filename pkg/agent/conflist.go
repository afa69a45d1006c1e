package agent

import (
	"bytes"
	"os"

	"github.com/kubeveil/kubeveil/internal/atomicfile"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/node"
)

// writeConflist writes the CNI configuration if it differs, and reports whether it did.
func writeConflist(cfg config.Config, d decision) (changed bool, err error) {
	text, err := abi.Conflist(abi.ConflistParams{
		MTU: d.podMTU, PodPrefixes: d.podPrefixes, IPAMDir: abi.IPAMDir,
		Portmap: cfg.CNI.Portmap, Bandwidth: cfg.CNI.Bandwidth,
	})
	if err != nil {
		return false, err
	}
	path := node.ConflistPath(cfg.CNI.ConfDir)
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, text) {
		return false, nil
	}
	if err := os.MkdirAll(cfg.CNI.ConfDir, 0o755); err != nil {
		return false, node.ConflistError(path, err)
	}
	if err := atomicfile.Write(path, text, 0o644); err != nil {
		return false, node.ConflistError(path, err)
	}
	return true, nil
}
