package main

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kubeveil/kubeveil/csi/backend"
	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt/dmcrypttest"
	"github.com/kubeveil/kubeveil/csi/driver"
	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/csi/mount"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/csi/volume/filestore"
	"github.com/kubeveil/kubeveil/hack/deptest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
)

func TestDependencies(t *testing.T) {
	deptest.Forbid(t, map[string]string{
		"k8s.io/kubernetes":            "the kubelet is a client of ours, not a library",
		deptest.Module + "/pkg/agent":  "volumes know nothing of the network",
		deptest.Module + "/pkg/tunnel": "volumes know nothing of the network",
		deptest.Module + "/e2e":        "test code is not shipped",
	})
}

func TestFlagsThatDoNotGoTogether(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no node": {nil, "--node NAME"},
		"unknown store": {[]string{"--node", "n", "--store", "etcd"},
			"want kubernetes or file:DIR"},
		"file store, no cluster": {[]string{"--node", "n", "--store", "file:/x"}, "--cluster ID"},
		"file store, no folder": {[]string{"--node", "n", "--store", "file:", "--cluster", "c"},
			"needs a folder"},
		"cluster with Kubernetes": {[]string{"--node", "n", "--cluster", "c"}, "kube-system"},
		"no backend":              {[]string{"--node", "n", "--files", ""}, "--files or --disks"},
		"previous key alone": {[]string{"--node", "n", "--previous-key-file", "/x"},
			"--key-file"},
		"unknown tuning": {[]string{"--node", "n", "--latency-tuning", "yes"},
			"auto, on or off"},
		"all in reserve": {[]string{"--node", "n", "--reserve", "100"}, "0 to 90"},
		"a check has more than all": {[]string{"--node", "n", "--check-memory", "512",
			"--programs-memory", "384"}, "--programs-memory 384: want MiB, at least the 512"},
		"less than no memory": {[]string{"--node", "n", "--check-memory", "-1"}, "--check-memory"},
		"relative endpoint":   {[]string{"--node", "n", "--endpoint", "csi.sock"}, "absolute"},
		"never re-wrap":       {[]string{"--node", "n", "--rewrap-every", "0"}, "--rewrap-every"},
		"word too many":       {[]string{"--node", "n", "serve"}, `unexpected argument "serve"`},
		"key without a file":  {[]string{"make-key"}, "make-key FILE"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := run(context.Background(), c.args); err == nil ||
				!strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q in it", err, c.want)
			}
		})
	}
}

func TestKeys(t *testing.T) {
	dir := t.TempDir()
	o := options{keyFile: filepath.Join(dir, "new"), previousKeyFile: filepath.Join(dir, "old")}
	if _, err := o.keys(); err == nil || !strings.Contains(err.Error(), "make-key") {
		t.Errorf("a missing key file: %v", err)
	}

	for _, path := range []string{o.keyFile, o.previousKeyFile} {
		errtest.Must(t, run(t.Context(), []string{"make-key", path}))
	}

	before := filetest.Read(t, o.keyFile)
	if err := run(t.Context(), []string{"make-key", o.keyFile}); err == nil ||
		!strings.Contains(err.Error(), "exists, and is not overwritten") {
		t.Errorf("an existing key was overwritten: %v", err)
	}
	if after, err := os.ReadFile(o.keyFile); string(after) != string(before) || err != nil {
		t.Errorf("the key has changed, %v", err)
	}

	// A key that cannot be used must not be replaced with a new key.
	errtest.Must(t, os.Chmod(o.keyFile, 0o644))
	if _, err := o.keys(); err == nil || strings.Contains(err.Error(), "make-key") ||
		!strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a key file that other users may read: %v", err)
	}
	errtest.Must(t, os.Chmod(o.keyFile, 0o600))
	keys, err := o.keys()
	if err != nil || len(keys) != 1 || keys["file"].Name() != "file" {
		t.Errorf("%v, %v", keys, err)
	}
}

// A driver fences a volume that another node took over, even if it gets no calls.
func TestUpkeepFencesWhatWasTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine, store, id := dmcrypttest.New(), &filestore.Folder{Dir: t.TempDir()}, crypt.UUID{1}
		set := volume.NewSet(volume.Config{Cluster: "c", Node: "node-1", Store: store,
			Engine: engine, Backend: &backend.Files{Dir: t.TempDir()}})
		d, err := driver.New(driver.Config{Node: "node-1",
			Sets: map[string]*volume.Set{driver.BackendFile: set}, Mounts: mount.Host{}})
		errtest.Must(t, err)

		_, made := engine.Create(t.Context(),
			dmcrypt.Expected(id, 2, crypt.SectorSize, 1, "", false),
			nil)
		err = store.Create(t.Context(), volume.State{
			Volume: "pvc-1", Cluster: "c", Request: volume.Request{Node: "node-1",
				Backend: driver.BackendFile}, Phase: volume.Ready, Payload: crypt.SectorSize,
			Key: keyring.Wrapped{Provider: keyring.NameFile, KeyID: "k", Blob: []byte{1}}, UUID: id,
			Content: volume.Made, Writer: "node-2", Epoch: 3,
		})
		errtest.Must(t, err, made)

		ctx, cancel := context.WithCancel(t.Context())
		var g errgroup.Group
		o := options{rewrapEvery: time.Hour, trimEvery: time.Hour}
		newProcess(&o, d, states{}, slog.New(slog.DiscardHandler)).upkeep(ctx, &g)
		synctest.Wait()
		if live := engine.Live(); len(live) != 0 {
			t.Errorf("mappings %v", live)
		}

		cancel()
		errtest.Check(t, g.Wait())
	})
}
