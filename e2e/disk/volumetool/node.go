package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/kubeveil/kubeveil/csi/backend"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/driver"
	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/csi/mount"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/csi/volume/filestore"
	"github.com/kubeveil/kubeveil/e2e/disk/answer"
)

// settings are the values of the command line.
type settings struct {
	dir, disks, tuning string
	key                int
}

// node is this machine with a driver and its keys.
type node struct {
	settings
	keys   keyring.Chain
	set    *volume.Set
	driver *driver.Driver
}

const (
	clusterID = "c0ffee00-0000-4000-8000-000000000001"
	nodeName  = "node-1"
)

func newNode(s settings) (*node, error) {
	n := &node{settings: s}
	dirs := map[string]string{}
	for _, name := range []string{"states", "keys", "locks", "files", "claims", "staging"} {
		dirs[name] = filepath.Join(s.dir, name)
		if err := os.MkdirAll(dirs[name], 0o700); err != nil {
			return nil, err
		}
	}

	if err := n.readKeys(); err != nil {
		return nil, err
	}

	config := volume.Config{
		Cluster: clusterID, Node: nodeName, Store: &filestore.Folder{Dir: dirs["states"]},
		Engine: dmcrypt.Kernel{Inline: true}, Keys: n.keys,
		Locks: dirs["locks"], Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	kind := driver.BackendFile
	if s.disks == "" {
		// The files may be sparse, because only this machine uses the disk below them.
		config.Backend = &backend.Files{Dir: dirs["files"], Sparse: true}
	} else {
		kind = driver.BackendDisk
		config.Backend = &backend.Disks{Paths: strings.Split(s.disks, ","), Claims: dirs["claims"]}
	}

	n.set = volume.NewSet(config)
	var err error
	n.driver, err = driver.New(driver.Config{
		Node: nodeName, Version: "test", Sets: map[string]*volume.Set{kind: n.set},
		Keys:     map[string]keyring.Provider{keyring.NameFile: n.keys},
		Defaults: driver.Parameters{Tuning: dmcrypt.Tuning(s.tuning)}, Mounts: mount.Host{},
		PrivateMounts: true, Log: config.Log,
	})
	return n, err
}

func (n *node) keyPath(number int) string {
	return filepath.Join(n.dir, "keys", strconv.Itoa(number))
}

// readKeys reads the key-encryption keys, the newest first, or only the key of --key. It creates
// the first key if it does not exist.
func (n *node) readKeys() error {
	if err := keyring.CreateFile(n.keyPath(1)); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	n.keys = nil
	for i := 1; ; i++ {
		key, err := keyring.File(n.keyPath(i))
		if errors.Is(err, os.ErrNotExist) {
			break
		}
		if err != nil {
			return err
		}
		if n.key == 0 || n.key == i {
			n.keys = slices.Insert(n.keys, 0, key)
		}
	}
	if len(n.keys) == 0 {
		return fmt.Errorf("there is no key-encryption key %d", n.key)
	}
	return nil
}

// do runs the verb words[0] with the other words as its arguments.
func (n *node) do(ctx context.Context, words []string) (answer.Answer, error) {
	verbs := map[string]struct {
		least, most int
		run         func(context.Context, []string) (answer.Answer, error)
	}{
		"provision": {2, 2, n.provision}, "stage": {1, 2, n.stage}, "unstage": {1, 2, n.unstage},
		"delete": {1, 1, n.delete},
		"rewrap": {3, 3, n.rewrap}, "place": {1, 1, place}, "reference": {2, 3, n.reference},
	}
	if len(words) == 0 {
		return answer.Answer{}, errors.New("no verb: see volumetool -h")
	}
	v, ok := verbs[words[0]]
	if rest := words[1:]; ok && len(rest) >= v.least && len(rest) <= v.most {
		return v.run(ctx, rest)
	}
	return answer.Answer{}, fmt.Errorf("unknown verb or wrong number of arguments: %q", words)
}

// how returns the capability to mount a file system, or to use the raw device if folder is empty.
func how(folder string) *csi.VolumeCapability {
	c := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{
		Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}}
	if folder == "" {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	} else {
		c.AccessType = &csi.VolumeCapability_Mount{
			Mount: &csi.VolumeCapability_MountVolume{FsType: string(mount.Ext4)}}
	}
	return c
}

// where returns the folder in the arguments or an empty string, and the staging path. It creates
// the staging path.
func (n *node) where(words []string) (folder, staging string, err error) {
	if len(words) > 1 {
		folder = words[1]
		return folder, folder, os.MkdirAll(folder, 0o700)
	}
	staging = filepath.Join(n.dir, "staging", words[0])
	return "", staging, os.MkdirAll(staging, 0o700)
}

func (n *node) provision(ctx context.Context, words []string) (answer.Answer, error) {
	size, err := strconv.ParseInt(words[1], 10, 64)
	if err != nil {
		return answer.Answer{}, err
	}
	_, err = n.driver.CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name: words[0], VolumeCapabilities: []*csi.VolumeCapability{how("")},
		CapacityRange: &csi.CapacityRange{RequiredBytes: size},
	})
	return answer.Answer{}, err
}

// stage calls NodeStageVolume like a kubelet. Took is the time of the call.
func (n *node) stage(ctx context.Context, words []string) (answer.Answer, error) {
	folder, staging, err := n.where(words)
	if err != nil {
		return answer.Answer{}, err
	}
	began := time.Now()
	_, err = n.driver.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: words[0],
		StagingTargetPath: staging, VolumeCapability: how(folder)})
	a := answer.Answer{Took: []time.Duration{time.Since(began)}}
	if err != nil {
		return a, err
	}
	o, err := n.set.Find(ctx, words[0])
	a.Path, a.Epoch, a.KeyID = o.Mapping.Path, o.State.Epoch, o.State.Key.KeyID
	return a, err
}

func (n *node) unstage(ctx context.Context, words []string) (answer.Answer, error) {
	_, staging, err := n.where(words)
	if err != nil {
		return answer.Answer{}, err
	}
	began := time.Now()
	_, err = n.driver.NodeUnstageVolume(ctx,
		&csi.NodeUnstageVolumeRequest{VolumeId: words[0], StagingTargetPath: staging})
	return answer.Answer{Took: []time.Duration{time.Since(began)}}, err
}

func (n *node) delete(ctx context.Context, words []string) (answer.Answer, error) {
	_, err := n.driver.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: words[0]})
	return answer.Answer{}, err
}
