package kerneltest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/kubeveil/kubeveil/csi/driver"
	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/csi/mount"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
)

// plugin is the driver on this machine. Its methods make the calls of a kubelet.
type plugin struct {
	*node
	*driver.Driver
	dir     string
	targets map[string][]string
}

func newPlugin(t *testing.T) *plugin {
	p := &plugin{node: newNode(t), dir: t.TempDir(), targets: map[string][]string{}}
	p.restart()
	t.Cleanup(func() {
		for id, targets := range p.targets {
			for _, at := range targets {
				_, err := p.NodeUnpublishVolume(after(t),
					&csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: at})
				p.report(err)
			}
			p.report(p.unstage(id))
			_, err := p.DeleteVolume(after(t), &csi.DeleteVolumeRequest{VolumeId: id})
			p.report(err)
		}
	})
	return p
}

// after returns a context for work that is done after the test has ended.
func after(t *testing.T) context.Context { return context.WithoutCancel(t.Context()) }

func (p *plugin) report(err error) {
	if err != nil {
		p.t.Errorf("clean up: %v", err)
	}
}

// restart replaces the driver as a new process would.
func (p *plugin) restart() {
	p.t.Helper()
	var err error
	p.Driver, err = driver.New(driver.Config{
		Node: p.Set.Node, Version: "test",
		Sets: map[string]*volume.Set{driver.BackendFile: volume.NewSet(p.Set.Config)},
		Keys: map[string]keyring.Provider{keyring.NameFile: p.keys}, Mounts: mount.Host{},
		PrivateMounts: true, Log: p.Set.Log,
	})
	if err == nil {
		err = p.Recover(p.t.Context())
	}
	errtest.Must(p.t, err)
}

// how returns a capability. An empty kind means the raw device.
func how(kind mount.FS) *csi.VolumeCapability {
	c := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{
		Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}}
	if kind == "" {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	} else {
		c.AccessType = &csi.VolumeCapability_Mount{
			Mount: &csi.VolumeCapability_MountVolume{FsType: string(kind)}}
	}
	return c
}

func (p *plugin) provision(id string, c *csi.VolumeCapability, bytes int64, from string) {
	p.t.Helper()
	r := &csi.CreateVolumeRequest{Name: id, VolumeCapabilities: []*csi.VolumeCapability{c},
		CapacityRange: &csi.CapacityRange{RequiredBytes: bytes}}
	if from != "" {
		r.VolumeContentSource = &csi.VolumeContentSource{
			Type: &csi.VolumeContentSource_Snapshot{
				Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: from}}}
	}
	p.targets[id] = nil
	errtest.Must(p.t, errtest.Of(p.CreateVolume(p.t.Context(), r)))
}

func (p *plugin) staging(id string) string { return filepath.Join(p.dir, "staging-"+id) }

func (p *plugin) stage(id string, c *csi.VolumeCapability) time.Duration {
	p.t.Helper()
	errtest.Must(p.t, os.MkdirAll(p.staging(id), 0o700))
	began := time.Now()
	if _, err := p.NodeStageVolume(p.t.Context(),
		&csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: p.staging(id),
			VolumeCapability: c}); err != nil {
		p.t.Fatal(err)
	}
	return time.Since(began)
}

func (p *plugin) publish(id string, c *csi.VolumeCapability) string {
	p.t.Helper()
	at := filepath.Join(p.dir, "target-"+id)
	if _, err := p.NodePublishVolume(p.t.Context(), &csi.NodePublishVolumeRequest{
		VolumeId: id, StagingTargetPath: p.staging(id), TargetPath: at, VolumeCapability: c,
	}); err != nil {
		p.t.Fatal(err)
	}
	p.targets[id] = append(p.targets[id], at)
	return at
}

func (p *plugin) unstage(id string) error {
	_, err := p.NodeUnstageVolume(after(p.t),
		&csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: p.staging(id)})
	return err
}

func (p *plugin) withdraw(id string) {
	p.t.Helper()
	for _, at := range p.targets[id] {
		if _, err := p.NodeUnpublishVolume(p.t.Context(),
			&csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: at}); err != nil {
			p.t.Fatal(err)
		}
	}
	p.targets[id] = nil
	errtest.Must(p.t, p.unstage(id))
}

func (p *plugin) expand(id, at string, c *csi.VolumeCapability, bytes int64) {
	p.t.Helper()
	r, err := p.NodeExpandVolume(p.t.Context(), &csi.NodeExpandVolumeRequest{
		VolumeId: id, VolumePath: at, VolumeCapability: c,
		CapacityRange: &csi.CapacityRange{RequiredBytes: bytes},
	})
	if err != nil || r.CapacityBytes != bytes {
		p.t.Fatalf("expand %s: %v, %v", id, r, err)
	}
}

func (p *plugin) healthy(id string) {
	p.t.Helper()
	r, err := p.NodeGetVolumeHealth(p.t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: id})
	if err != nil || len(r.VolumeHealth.HealthStatuses) != 0 {
		p.t.Errorf("health of %s: %v, %v", id, r, err)
	}
	if r, err := p.Probe(p.t.Context(), &csi.ProbeRequest{}); err != nil ||
		!r.GetReady().GetValue() {
		p.t.Errorf("health of the driver: %v, %v", r, err)
	}
}

func TestDriverWithFileSystems(t *testing.T) {
	for _, kind := range mount.Kinds {
		t.Run(string(kind), func(t *testing.T) {
			p := newPlugin(t)
			c, bytes := how(kind), kind.MinSize()+size
			p.provision("pvc-1", c, bytes, "")
			p.stage("pvc-1", c)
			at := p.publish("pvc-1", c)
			text := marked(canary)
			filetest.Write(t, filepath.Join(at, "first"), text, 0o600)

			p.healthy("pvc-1")
			// A later process finds the existing volumes.
			p.restart()
			p.stage("pvc-1", c)
			p.expand("pvc-1", at, c, 2*bytes)
			if _, err := p.CreateSnapshot(t.Context(),
				&csi.CreateSnapshotRequest{Name: "snapshot-1", SourceVolumeId: "pvc-1"}); err !=
				nil {
				t.Fatal(err)
			}

			t.Cleanup(func() {
				_, err := p.DeleteSnapshot(after(t),
					&csi.DeleteSnapshotRequest{SnapshotId: "snapshot-1"})
				p.report(err)
			})
			if err := os.WriteFile(filepath.Join(at, "second"), text, 0o600); err != nil {
				t.Fatalf("the source takes no writes after it was copied: %v", err)
			}

			// The copy is larger than its source and mounted at the same time.
			p.provision("pvc-2", c, 3*bytes, "snapshot-1")
			p.stage("pvc-2", c)
			other := p.publish("pvc-2", c)
			p.compare(filepath.Join(other, "first"), text)
			if _, err := os.Stat(filepath.Join(other, "second")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the copy has data that was written later: %v", err)
			}

			p.large(at, 2*bytes)
			p.large(other, 3*bytes)
			if err := p.unstage("pvc-1"); driver.Code(err) != codes.FailedPrecondition {
				t.Errorf("unstaged while published: %v", err)
			}

			p.withdraw("pvc-1")
			p.stage("pvc-1", c)
			p.compare(filepath.Join(p.publish("pvc-1", c), "second"), text)
			if n := count(t, p.image("pvc-1"), canary); n != 0 {
				t.Errorf("%d times in clear on the disk", n)
			}
		})
	}
}

func (p *plugin) compare(path string, want []byte) {
	p.t.Helper()
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		p.t.Errorf("%s: %d bytes, %v", path, len(got), err)
	}
}

// large checks that the size of the file system is about the size of its volume.
func (p *plugin) large(at string, volume int64) {
	p.t.Helper()
	u, err := mount.Host{}.Usage(at)
	if err != nil || u.Total < volume*8/10 || u.Total > volume {
		p.t.Errorf("%s: %d of %d bytes, %v", at, u.Total, volume, err)
	}
}

func TestDriverWithDevices(t *testing.T) {
	p := newPlugin(t)
	c := how("")
	p.provision("pvc-1", c, size, "")
	p.stage("pvc-1", c)
	at := p.publish("pvc-1", c)
	write(t, at, 1<<20, marked(canary))
	if err := p.unstage("pvc-1"); driver.Code(err) != codes.FailedPrecondition {
		t.Errorf("unstaged while published: %v", err)
	}
	p.expand("pvc-1", at, c, 2*size)
	if u, err := (mount.Host{}).Usage(at); u.Total != 2*size || err != nil {
		t.Errorf("%+v, %v", u, err)
	}
	p.withdraw("pvc-1")
	p.stage("pvc-1", c)
	wantAt(t, p.publish("pvc-1", c), 1<<20, marked(canary))
	p.healthy("pvc-1")
}

// TestTimeToStage prints the measurements that the gates of `make bench-storage` judge, without a
// cluster.
func TestTimeToStage(t *testing.T) {
	p := newPlugin(t)
	p.files.Sparse = true
	const rounds = 5
	took := map[string][]time.Duration{}
	for i := range rounds {
		id := fmt.Sprintf("pvc-%d", i)
		p.provision(id, how(mount.Ext4), 10<<30, "")
		took["new"] = append(took["new"], p.stage(id, how(mount.Ext4)))
		p.withdraw(id)
		took["existing"] = append(took["existing"], p.stage(id, how(mount.Ext4)))
		p.withdraw(id)
	}
	var said []string
	for what, d := range took {
		slices.Sort(d)
		said = append(said, fmt.Sprintf("%s: median %v, from %v to %v", what, d[rounds/2], d[0],
			d[rounds-1]))
	}
	slices.Sort(said)
	var u unix.Utsname
	errtest.Must(t, unix.Uname(&u))
	t.Logf("time to stage ext4 of 10 GiB, Linux %s\n%s", unix.ByteSliceToString(u.Release[:]),
		strings.Join(said, "\n"))
}
