package node

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/source"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// CheckFiles returns one joined error with every reason why veild would refuse a file that a valid
// configuration names. It checks the kubeconfig or the snapshot, the private key, the last good
// table and the folder of the CNI configuration. It contacts no server and changes nothing.
func CheckFiles(cfg config.Config) error {
	s, _, sourceErr := NewSource(cfg, slog.New(slog.DiscardHandler))
	if snapshot, ok := s.(*source.Snapshot); ok {
		sourceErr = snapshot.Check()
	}
	return errors.Join(sourceErr,
		wgkey.Check(cfg.KeyFile, cfg.TrustDisk),
		source.Check(cfg.SnapshotFile, cfg.TrustDisk),
		checkConfDir(cfg.CNI.ConfDir))
}

// checkConfDir returns an error if the CNI configuration could not be written to dir, which may be
// missing.
func checkConfDir(dir string) error {
	for at := filepath.Clean(dir); ; at = filepath.Dir(at) {
		err := unix.Access(at, unix.W_OK)
		if errors.Is(err, fs.ErrNotExist) && at != filepath.Dir(at) {
			continue
		}
		if err != nil {
			return conflistError(ConflistPath(dir), err)
		}
		info, err := os.Stat(at)
		if err == nil && !info.IsDir() {
			err = fmt.Errorf("cni.confDir: %s is not a directory", at)
		}
		return err
	}
}
