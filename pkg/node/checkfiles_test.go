package node

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/config"
)

const goodKubeconfig = `apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}]
clusters: [{name: k, cluster: {server: "https://198.18.0.2:6443"}}]
users: [{name: u, user: {token: t}}]
`

// filesFit is a configuration whose files fit, below dir.
func filesFit(cfg config.Config, dir string) (config.Config, error) {
	cfg.Source.Kubeconfig = filepath.Join(dir, "kubeconfig")
	cfg.KeyFile, cfg.SnapshotFile = filepath.Join(dir, "run/key"),
		filepath.Join(dir, "run/snapshot.json")
	cfg.CNI.ConfDir = filepath.Join(dir, "net.d")
	return cfg, os.WriteFile(cfg.Source.Kubeconfig, []byte(goodKubeconfig), 0o600)
}

// `veild check` reports what veild would refuse or could not do at its start. It makes nothing.
func TestCheckFiles(t *testing.T) {
	const dir = "/run/kubeveil-check"
	kubeconfig := func(old, next string) func(*config.Config) error {
		return func(cfg *config.Config) error {
			return os.WriteFile(cfg.Source.Kubeconfig,
				[]byte(strings.Replace(goodKubeconfig, old, next, 1)), 0o600)
		}
	}

	set := func(change func(*config.Config)) func(*config.Config) error {
		return func(cfg *config.Config) error {
			change(cfg)
			return nil
		}
	}
	for name, tt := range map[string]struct {
		spoil func(*config.Config) error
		want  string // nothing: it fits
	}{
		"all fit": {set(func(*config.Config) {}), ""},
		"no kubeconfig": {set(func(cfg *config.Config) { cfg.Source.Kubeconfig += "x" }),
			"does not exist"},
		"an empty kubeconfig": {kubeconfig(goodKubeconfig, ""), "is empty"},
		"garbage":             {kubeconfig(goodKubeconfig, "\x01"), "kubeconfig"},
		"a folder": {set(func(cfg *config.Config) { cfg.Source.Kubeconfig = dir }),
			"cannot be read"},
		"a context that is not": {kubeconfig("current-context: c", "current-context: d"),
			"specified context: d"},
		"no token": {kubeconfig("token: t", "tokenFile: /nowhere/token"),
			"/nowhere/token"},
		"a service's address": {kubeconfig("198.18.0.2", "198.18.128.1"),
			"is a service's (198.18.128.0/20)"},
		"a key on a disk": {set(func(cfg *config.Config) { cfg.KeyFile = "/proc/key" }),
			"private key: /proc/key is not on tmpfs"},
		"a key that is none": {set(func(cfg *config.Config) {
			cfg.KeyFile = cfg.Source.Kubeconfig
		}), "key file refused"},
		"a table on a disk": {set(func(cfg *config.Config) {
			cfg.SnapshotFile = "/proc/s.json"
		}), "snapshot: /proc/s.json is not on tmpfs"},
		"a table that is none": {set(func(cfg *config.Config) {
			cfg.SnapshotFile = cfg.Source.Kubeconfig
		}), ""},
		"a file for a directory": {set(func(cfg *config.Config) {
			cfg.CNI.ConfDir = cfg.Source.Kubeconfig
		}), "is not a directory"},
		"a read-only directory": {func(cfg *config.Config) error {
			cfg.CNI.ConfDir = dir + "/read-only/net.d"
			return errors.Join(os.Mkdir(dir+"/read-only", 0o755),
				unix.Mount("none", dir+"/read-only", "tmpfs", unix.MS_RDONLY, ""))
		}, "read-only file system: make the directory writable for veild"},
		"a snapshot that is not there yet": {set(func(cfg *config.Config) {
			cfg.Source = config.Source{Kind: config.SourceSnapshot, File: dir + "/s.json"}
		}), ""},
		"a snapshot that is none": {set(func(cfg *config.Config) {
			cfg.Source = config.Source{Kind: config.SourceSnapshot, File: cfg.Source.Kubeconfig}
		}), "correct or replace it"},
	} {
		t.Run(name, func(t *testing.T) {
			good := config.Default()
			good.Node = "a"
			good.ClusterRanges = nettest.Prefixes("198.19.0.0/16", "fd42:1::/48")
			good.ServiceRanges = nettest.Prefixes("198.18.128.0/20", "fd42:2::/112")
			nettest.NewHost(t, dir).Run(t, func() error {
				cfg, err := filesFit(good, dir)
				if err := errors.Join(err, tt.spoil(&cfg)); err != nil {
					return err
				}
				err = CheckFiles(cfg)
				if (err != nil) != (tt.want != "") ||
					err != nil && !strings.Contains(err.Error(), tt.want) {
					t.Errorf("got %v, want %q", err, tt.want)
				}
				if made, _ := filepath.Glob(dir + "/*/*"); len(made) > 0 {
					t.Errorf("it made %q", made)
				}
				return nil
			})
		})
	}
}
