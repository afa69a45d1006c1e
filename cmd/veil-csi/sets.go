package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/csi/backend"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/driver"
	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/csi/mount"
	"github.com/kubeveil/kubeveil/csi/volume"
)

// host holds the parts of the machine that tests replace. The zero value is this machine.
type host struct {
	// adjust changes the configuration of each Set. Nil changes nothing.
	adjust func(*volume.Config)
	// mounts is the mount table. Nil means the kernel's mount table.
	mounts mount.System
}

// newSet returns a volume.Set for this node, with configuration c.
func (o *options) newSet(c volume.Config) *volume.Set {
	c.Node, c.Locks = o.node, o.run
	if o.adjust != nil {
		o.adjust(&c)
	}
	return volume.NewSet(c)
}

// mountSystem returns the mount table of the machine.
func (o *options) mountSystem() mount.System {
	if o.mounts != nil {
		return o.mounts
	}
	check := uint64(o.checkMemory) << 20
	programs := cmp.Or(uint64(o.programsMemory)<<20, max(mount.DefaultMemory, check))
	return mount.Host{CheckMemory: check, Programs: mount.NewBudget(programs)}
}

// keys returns the configured key providers, keyed by name.
func (o *options) keys() (map[string]keyring.Provider, error) {
	out := map[string]keyring.Provider{}
	if o.kmsSocket != "" {
		p, err := keyring.NewKMS(o.kmsSocket)
		if err != nil {
			return nil, err
		}
		out[keyring.NameKMS] = p
	}

	var chain keyring.Chain
	for _, path := range []string{o.keyFile, o.previousKeyFile} {
		if path == "" {
			continue
		}
		p, err := keyring.File(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%w, with veil-csi make-key %s", err, path)
		}
		if err != nil {
			return nil, fmt.Errorf("key file: %w; do not replace the file: volumes whose "+
				"keys it wraps would be lost", err)
		}
		chain = append(chain, p)
	}

	if len(chain) > 0 {
		out[keyring.NameFile] = chain
	}
	return out, nil
}

// inline reports whether volumes with tuning: latency get dm-crypt's flags for low latency.
func (o *options) inline(log *slog.Logger) (bool, error) {
	if o.latencyTuning != tuningAuto {
		return o.latencyTuning == tuningOn, nil
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return false, fmt.Errorf("release of the kernel: %w", err)
	}
	release := unix.ByteSliceToString(name.Release[:])
	safe := dmcrypt.LatencyIsSafe(release)
	if !safe {
		log.Info("dm-crypt's latency flags are off: CVE-2024-26718; if your kernel has the fix, set "+
			"--latency-tuning=on", "kernel", release)
	}
	return safe, nil
}

// sets returns a volume.Set per configured backend, keyed by backend. The caller sets their
// Cluster.
func (o *options) sets(s states, log *slog.Logger) (map[string]*volume.Set, error) {
	out := map[string]*volume.Set{}
	inline, err := o.inline(log)
	if err != nil {
		return nil, err
	}
	engine := dmcrypt.Kernel{Inline: inline}
	add := func(name string, b backend.Backend) {
		out[name] = o.newSet(volume.Config{Store: s, Engine: engine, Backend: b, Log: log})
	}
	if o.files != "" {
		if err := os.MkdirAll(o.files, 0o700); err != nil {
			return nil, err
		}
		add(driver.BackendFile, &backend.Files{Dir: o.files, Reserve: o.reserve, Sparse: o.sparse})
	}
	if o.disks != "" {
		if err := os.MkdirAll(o.claims, 0o700); err != nil {
			return nil, err
		}
		add(driver.BackendDisk, &backend.Disks{Paths: strings.Split(o.disks, ","),
			Claims: o.claims})
	}
	return out, os.MkdirAll(o.run, 0o700)
}
