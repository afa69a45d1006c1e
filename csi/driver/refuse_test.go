package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/kubeveil/kubeveil/csi/backend"
	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/csi/internal/blk/blktest"
	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/csi/mount"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

func TestErrorsHaveTheirCodes(t *testing.T) {
	for _, c := range []struct {
		err  error
		want codes.Code
	}{
		{nil, codes.OK},
		{errors.New("anything"), codes.Internal},
		{invalid("x"), codes.InvalidArgument},
		{fmt.Errorf("a: %w", failed("b")), codes.FailedPrecondition},
		{&crypt.RefusedError{Kind: crypt.Blank}, codes.DataLoss},
		{&crypt.RefusedError{Kind: crypt.OlderImage}, codes.DataLoss},
		{&crypt.RefusedError{Kind: crypt.NewerThanState}, codes.FailedPrecondition},
		{&crypt.RefusedError{Kind: crypt.NotEmpty}, codes.FailedPrecondition},
		{&crypt.RefusedError{Kind: crypt.Unsupported}, codes.FailedPrecondition},
		{&crypt.RefusedError{Kind: crypt.Changed}, codes.DataLoss},
		{keyring.ErrCorrupt, codes.FailedPrecondition},
		{&volume.BusyError{Volume: "v", Holder: "a", Node: "b"}, codes.FailedPrecondition},
		{&volume.TakenError{Volume: "v", From: "a", To: "b"}, codes.FailedPrecondition},
		{&keyring.BindingError{}, codes.FailedPrecondition},
		{fmt.Errorf("%w: %w", keyring.ErrUnavailable, context.DeadlineExceeded), codes.Unavailable},
		{keyring.ErrWrongKey, codes.InvalidArgument},
		{volume.ErrExists, codes.AlreadyExists},
		{volume.ErrNotFound, codes.NotFound},
		{backend.ErrMissing, codes.NotFound},
		{backend.ErrFull, codes.ResourceExhausted},
		{blk.ErrNoLoop, codes.ResourceExhausted},
		{blk.ErrOther, codes.Unavailable},
		{unix.ENOSPC, codes.ResourceExhausted},
		{mount.ErrDamaged, codes.DataLoss},
		{mount.ErrBusy, codes.FailedPrecondition},
		{volume.ErrInProgress, codes.Aborted},
		{volume.ErrConflict, codes.Aborted},
		{volume.ErrSmaller, codes.OutOfRange},
		{volume.ErrUnavailable, codes.Unavailable},
		{context.Canceled, codes.Canceled},
	} {
		if got := Code(c.err); got != c.want {
			t.Errorf("%v: %v, want %v", c.err, got, c.want)
		}
	}
}

// A state is restored from a backup while a pod uses newer data. Every call that would end the use
// is refused, and the pod continues.
func TestStateFromABackup(t *testing.T) {
	m, d := running(t, mounted(""), nil)
	old := m.state(pvc)
	errtest.Must(t, m.unpublish(d, "target"), m.unstage(d), staged(m, d))

	m.store.mu.Lock()
	m.store.byVolume[pvc] = old
	m.store.mu.Unlock()

	deleted := func() error {
		_, err := d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: pvc})
		return err
	}
	for what, err := range map[string]error{
		"stage": m.stage(d, mounted("")), "publish": m.publish(d, mounted(""), "second", false),
		"unstage":  m.unstage(d),
		"snapshot": snapshotted(m, d), "delete": deleted(),
	} {
		if !errors.Is(err, crypt.NewerThanState) || Code(err) != codes.FailedPrecondition {
			t.Errorf("%s: %v", what, err)
		}
	}

	m.greets("target")
	m.greets(staging)
	if len(m.engine.Live()) != 1 {
		t.Errorf("mappings %v", m.engine.Live())
	}
}

// A backup that was made while a volume was staged for the first time has a state in which pods
// have not used the volume yet. Such a state never makes the driver write a file system over data
// that a pod wrote since, neither while the volume is open nor later.
func TestStateFromABackupOfTheFirstStage(t *testing.T) {
	m := newMachine(t)
	var old volume.State
	hook := m.mounts.Hook
	m.mounts.Hook = func(op, path string) error {
		if op == "make" {
			old = m.state(pvc)
		}
		return hook(op, path)
	}
	d := m.process(0)

	m.made(d, mounted(""), nil)
	errtest.Must(t, staged(m, d), m.mounts.Write(m.path("target"), "greeting",
		"hello"))

	now := m.state(pvc)
	restore := func(st volume.State) {
		m.store.mu.Lock()
		defer m.store.mu.Unlock()
		m.store.byVolume[pvc] = st
	}
	restore(old)
	if old.Content != volume.Unmade {
		t.Fatalf("the backup: %+v", old)
	}
	if err := errors.Join(m.unpublish(d, "target"), m.unstage(d)); !errors.Is(err,
		crypt.NewerThanState) {
		t.Errorf("unstaged: %v", err)
	}

	for _, when := range []string{"while it is open", "after a reboot"} {
		if err := m.stage(d, mounted("")); !errors.Is(err, crypt.NewerThanState) ||
			m.mounts.Made() != 1 {
			t.Errorf("%s: %v, %d made", when, err, m.mounts.Made())
		}
		m.reboot()
	}

	restore(now)
	errtest.Must(t, staged(m, m.process(0)))

	m.greets("target")
}

// A volume that could not be staged is closed, even if a dead process left it open, because a
// kubelet does not unstage it. A volume that an administrator must repair stays open, and so does a
// volume that a process holds open.
func TestNothingStaysOpenThatWasNotStaged(t *testing.T) {
	for name, c := range map[string]struct {
		kind  string
		fails string
		code  codes.Code
		stays bool
	}{
		"another file system": {"xfs", "", codes.FailedPrecondition, false},
		"mount":               {"", "mount", codes.Internal, false},
		"growth":              {"", "grow", codes.Internal, false},
		"damage":              {"", "check", codes.DataLoss, true},
	} {
		for _, was := range []string{"closed", "open", "held open"} {
			t.Run(name+", was "+was, func(t *testing.T) {
				m, d := running(t, mounted("ext4"), nil)
				errtest.Must(t, m.unpublish(d, "target"), m.unstage(d))

				if c.fails == "grow" {
					// The volume is larger than its file system.
					grown(m, d)
				}

				stays := c.stays || was == "held open"
				if was != "closed" {
					m.left(d, was == "held open")
				}

				hook := m.mounts.Hook
				m.mounts.Hook = func(op, path string) error {
					switch {
					case op == "check" && c.fails == "check":
						return mount.ErrDamaged
					case op == c.fails:
						return unix.EIO
					}
					return hook(op, path)
				}

				if err := m.stage(d, mounted(c.kind)); Code(err) != c.code {
					t.Errorf("%v: %v, want %v", Code(err), err, c.code)
				}
				all, err := m.mounts.List()
				if st := m.state(pvc); (st.Writer != "") != stays ||
					(len(m.engine.Live()) != 0) != stays || len(all) != 0 || err != nil {
					t.Errorf("writer %q, mappings %v, mounts %v, %v", st.Writer, m.engine.Live(),
						all, err)
				}

				m.mounts.Hook = hook
				errtest.Must(t, staged(m, d))

				m.greets("target")
			})
		}
	}
}

// left opens the volume like a process that dies before it mounts the volume. If held is set,
// another process has the mapping open.
func (m *machine) left(d *Driver, held bool) {
	m.t.Helper()
	for _, adopted := range []bool{false, true} {
		if o, err := d.anySet.Open(m.t.Context(), pvc,
			volume.OpenOptions{Keys: m.keys[keyring.NameFile]}); err != nil ||
			o.Adopted != adopted {
			m.t.Fatalf("adopted %v, want %v: %v", o.Adopted, adopted, err)
		}
	}
	if held {
		m.engine.Edit(m.engine.Live()[0], func(mapping *dmcrypt.Mapping) { mapping.Open = 1 })
	}
}

// grown makes the volume larger than the file system on it.
func grown(m *machine, d *Driver) {
	m.t.Helper()
	if _, err := d.anySet.Expand(m.t.Context(), pvc, 2*size,
		volume.OpenOptions{Keys: m.keys[keyring.NameFile]}); err != nil {
		m.t.Fatal(err)
	}
}

// A volume that a pod uses is not closed when staging it again fails.
func TestWhatIsMountedStaysOpen(t *testing.T) {
	m, d := running(t, mounted(""), nil)
	grown(m, d)
	hook := m.mounts.Hook
	m.mounts.Hook = func(op, path string) error {
		if op == "grow" {
			return unix.EIO
		}
		return hook(op, path)
	}
	if err := m.stage(d, mounted("")); Code(err) != codes.Internal {
		t.Errorf("%v: %v", Code(err), err)
	}
	if st := m.state(pvc); st.Writer == "" || len(m.engine.Live()) != 1 {
		t.Errorf("writer %q, mappings %v", st.Writer, m.engine.Live())
	}
	m.greets("target")
	m.greets(staging)
}

func TestCreateRefuses(t *testing.T) {
	m := newMachine(t)
	m.room = 1 << 40
	d := m.process(0)
	many := &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{
			Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
	}
	discards := mounted("")
	discards.GetMount().MountFlags = []string{"noatime", "discard"}
	elsewhere := &csi.TopologyRequirement{Requisite: []*csi.Topology{topology("node-2")}}

	from := func(id string) *csi.VolumeContentSource {
		return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
			Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: id}}}
	}
	for name, c := range map[string]struct {
		r    *csi.CreateVolumeRequest
		code codes.Code
		says string
	}{
		"unknown parameter": {&csi.CreateVolumeRequest{
			Parameters: map[string]string{"cipher": "none"}}, codes.InvalidArgument,
			"known are backend, copies, discard, fsck, keys, tuning"},
		"parameter in other case": {&csi.CreateVolumeRequest{
			Parameters: map[string]string{"Tuning": "latency"}}, codes.InvalidArgument, `"Tuning"`},
		"value of a parameter": {&csi.CreateVolumeRequest{
			Parameters: map[string]string{"discard": "yes"}}, codes.InvalidArgument,
			"never, batch, online"},
		"backend that is not here": {&csi.CreateVolumeRequest{
			Parameters: map[string]string{"backend": "disk"}}, codes.InvalidArgument,
			"not configured on node node-1: file"},
		"keys that are not here": {&csi.CreateVolumeRequest{
			Parameters: map[string]string{"keys": "kms"}}, codes.InvalidArgument,
			"not configured on node node-1"},
		"mutable parameter": {&csi.CreateVolumeRequest{
			MutableParameters: map[string]string{"tuning": "latency"}}, codes.InvalidArgument,
			"cannot be changed"},
		"many nodes": {&csi.CreateVolumeRequest{
			VolumeCapabilities: []*csi.VolumeCapability{many}}, codes.InvalidArgument,
			"ReadWriteOnce"},
		"file system": {&csi.CreateVolumeRequest{
			VolumeCapabilities: []*csi.VolumeCapability{mounted("btrfs")}}, codes.InvalidArgument,
			"ext4"},
		"mount option discard": {&csi.CreateVolumeRequest{
			VolumeCapabilities: []*csi.VolumeCapability{discards}}, codes.InvalidArgument,
			"parameter discard"},
		"capability of nothing": {&csi.CreateVolumeRequest{
			VolumeCapabilities: []*csi.VolumeCapability{{AccessMode: mounted("").AccessMode}}},
			codes.InvalidArgument, "mount or block"},
		"name with a slash": {&csi.CreateVolumeRequest{Name: "../pvc"},
			codes.InvalidArgument, "plain name"},
		"another node": {&csi.CreateVolumeRequest{AccessibilityRequirements: elsewhere},
			codes.ResourceExhausted, "node-1"},
		"limit below required": {&csi.CreateVolumeRequest{
			CapacityRange: &csi.CapacityRange{RequiredBytes: size, LimitBytes: size - 1}},
			codes.OutOfRange, "limit"},
		"limit not a sector": {&csi.CreateVolumeRequest{
			CapacityRange: &csi.CapacityRange{RequiredBytes: size + 1, LimitBytes: size + 2}},
			codes.OutOfRange, fmt.Sprint(size + 4096)},
		"too small for xfs": {&csi.CreateVolumeRequest{
			VolumeCapabilities: []*csi.VolumeCapability{mounted("xfs")},
			CapacityRange:      &csi.CapacityRange{LimitBytes: size}}, codes.OutOfRange,
			fmt.Sprint(300 << 20)},
		"negative": {&csi.CreateVolumeRequest{
			CapacityRange: &csi.CapacityRange{RequiredBytes: -1}}, codes.OutOfRange, "negative"},
		"sum that overflows": {&csi.CreateVolumeRequest{
			CapacityRange: &csi.CapacityRange{RequiredBytes: 1<<63 - 1}}, codes.OutOfRange,
			"more than"},
		"16 TiB, for want of room only": {&csi.CreateVolumeRequest{
			CapacityRange: &csi.CapacityRange{RequiredBytes: 16 << 40}}, codes.ResourceExhausted,
			"not enough room"},
		"16 TiB and a sector": {&csi.CreateVolumeRequest{
			CapacityRange: &csi.CapacityRange{RequiredBytes: 16<<40 + crypt.SectorSize}},
			codes.OutOfRange, "are more than"},
		"no room": {&csi.CreateVolumeRequest{
			CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 41}}, codes.ResourceExhausted,
			"not enough room"},
		"copy of nothing": {&csi.CreateVolumeRequest{VolumeContentSource: from("pvc-0")},
			codes.NotFound, "pvc-0"},
		"source without a name": {&csi.CreateVolumeRequest{
			VolumeContentSource: &csi.VolumeContentSource{}}, codes.NotFound, ""},
		"keys without a secret": {&csi.CreateVolumeRequest{
			Parameters: map[string]string{"keys": "secret"}, VolumeContentSource: from("")},
			codes.NotFound, ""},
		"capability of no modes": {&csi.CreateVolumeRequest{
			VolumeCapabilities: []*csi.VolumeCapability{{AccessType: mounted("").AccessType}}},
			codes.InvalidArgument, "UNKNOWN"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.r.Name == "" {
				c.r.Name = pvc
			}
			if c.r.VolumeCapabilities == nil {
				c.r.VolumeCapabilities = []*csi.VolumeCapability{mounted("")}
			}
			if _, err := d.CreateVolume(t.Context(), c.r); Code(err) != c.code ||
				!strings.Contains(err.Error(), c.says) {
				t.Errorf("%v: %v, want %v with %q", Code(err), err, c.code, c.says)
			}
			if states, err := m.store.List(t.Context()); len(states) != 0 || err != nil ||
				m.disk(pvc) != nil {
				t.Errorf("left %+v, %v", states, err)
			}
		})
	}
}

func TestTheSameNameTwice(t *testing.T) {
	m := newMachine(t)
	d := m.process(0)
	m.made(d, mounted(""), nil)
	again := m.made(d, mounted(""), map[string]string{"discard": "never",
		"csi.storage.k8s.io/pvc/name": "data"})
	if again.CapacityBytes != size || again.VolumeContext["discard"] != "never" {
		t.Errorf("made again: %v", again)
	}
	for name, r := range map[string]*csi.CreateVolumeRequest{
		"other size": {CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * size}},
		"other parameters": {CapacityRange: &csi.CapacityRange{RequiredBytes: size},
			Parameters: map[string]string{"tuning": "latency"}},
	} {
		r.Name, r.VolumeCapabilities = pvc, []*csi.VolumeCapability{mounted("")}
		if _, err := d.CreateVolume(t.Context(), r); Code(err) != codes.AlreadyExists {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// tampered are the changes that a disk's owner can make while the volume is closed.
func TestStageRefusesDisks(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(m *machine, before *blktest.Disk)
		code codes.Code
	}{
		"bit of the header": {func(m *machine, _ *blktest.Disk) { m.disk(pvc).Flip(100, 1) },
			codes.DataLoss},
		"bit of the records": {func(m *machine, _ *blktest.Disk) {
			m.disk(pvc).Flip(288<<10+64, 1)
		}, codes.DataLoss},
		"blank": {func(m *machine, _ *blktest.Disk) {
			m.disk(pvc).Become(blktest.New(size + crypt.DataOffset))
		}, codes.DataLoss},
		"older image": {func(m *machine, before *blktest.Disk) {
			m.disk(pvc).Become(before)
		}, codes.DataLoss},
		"truncated": {func(m *machine, _ *blktest.Disk) { m.disk(pvc).Resize(size) },
			codes.DataLoss},
		"gone": {func(m *machine, _ *blktest.Disk) {
			m.mu.Lock()
			defer m.mu.Unlock()
			delete(m.disks, pvc)
		}, codes.NotFound},
		"another file system": {func(m *machine, _ *blktest.Disk) {
			if _, err := (shifted{m.disk(pvc)}).WriteAt(
				append([]byte(`{"fs":"xfs","size":67108864}`), make([]byte, 4096-28)...),
				0); err != nil {
				m.t.Fatal(err)
			}
		}, codes.FailedPrecondition},
		"garbage where the file system was": {func(m *machine, _ *blktest.Disk) {
			if _, err := (shifted{m.disk(pvc)}).WriteAt(append([]byte("garbage"),
				make([]byte, 4096-7)...), 0); err != nil {
				m.t.Fatal(err)
			}
		}, codes.DataLoss},
	} {
		t.Run(name, func(t *testing.T) {
			m, d := running(t, mounted("ext4"), nil)
			before := m.disk(pvc).Clone()
			errtest.Must(t, m.unpublish(d, "target"), m.unstage(d))

			c.do(m, before)
			for range 2 {
				if err := m.stage(d, mounted("ext4")); Code(err) != c.code {
					t.Errorf("%v: %v, want %v", Code(err), err, c.code)
				}
			}

			if m.mounts.Made() != 1 {
				t.Errorf("%d file systems made", m.mounts.Made())
			}
			if err := m.unstage(d); err != nil {
				t.Errorf("unstage what was refused: %v", err)
			}
		})
	}
}

func TestStageRefusesRequests(t *testing.T) {
	m := newMachine(t)
	d := m.process(0)
	v := m.made(d, mounted(""), map[string]string{"keys": "secret"})
	stage := func(context, secrets map[string]string) error {
		_, err := d.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{
			VolumeId: pvc, StagingTargetPath: m.folder(staging), VolumeCapability: mounted(""),
			VolumeContext: context, Secrets: secrets,
		})
		return err
	}

	edited := map[string]string{"keys": "secret", "discard": "online"}
	for name, c := range map[string]struct {
		err  error
		says string
	}{
		"no secret": {stage(v.VolumeContext, nil),
			"csi.storage.k8s.io/node-stage-secret-name"},
		"secret of another name": {stage(nil, map[string]string{"passphrase": "hunter2"}),
			`"passphrase"`},
		"secret without a key": {stage(nil, map[string]string{"key": "hunter2"}),
			"base64 of 32 bytes"},
		"edited attribute":  {stage(edited, secret(1)), "discard"},
		"attribute unknown": {stage(map[string]string{"cipher": "null"}, secret(1)), "cipher"},
	} {
		if Code(c.err) != codes.InvalidArgument || !strings.Contains(c.err.Error(), c.says) ||
			strings.Contains(c.err.Error(), "hunter2") {
			t.Errorf("%s: %v: %v, want %q in it", name, Code(c.err), c.err, c.says)
		}
	}

	errtest.Must(t, stage(map[string]string{"keys": "secret",
		"storage.kubernetes.io/csiProvisionerIdentity": "1"}, secret(1)))
	errtest.Must(t, m.unstage(d))
	if err := stage(nil, secret(2)); Code(err) != codes.InvalidArgument ||
		!strings.Contains(err.Error(), "sha256:") {
		t.Errorf("another key: %v: %v", Code(err), err)
	}
	if err := stage(nil, secret(1)); err != nil || m.mounts.Made() != 1 {
		t.Errorf("the key: %v, %d made", err, m.mounts.Made())
	}
}

// Each call that needs the key of the class's Secret is sent without a key and with a wrong key.
// These calls have no effect. With the right key the call succeeds.
func TestCallsWithoutTheRightSecretChangeNothing(t *testing.T) {
	m := newMachine(t)
	d := m.process(0)
	byClass := map[string]string{"keys": keyring.NameSecret}
	m.made(d, mounted(""), byClass)
	m.withSecret(d)
	errtest.Must(t, m.publish(d, mounted(""), "target", false),
		m.mounts.Write(m.path("target"), "greeting", "hello"))

	for _, call := range []struct {
		name, secret string
		do           func(secrets map[string]string) error
	}{
		{"snapshot", "snapshotter-secret", func(s map[string]string) error {
			_, err := d.CreateSnapshot(t.Context(),
				&csi.CreateSnapshotRequest{Name: snap, SourceVolumeId: pvc, Secrets: s})
			return err
		}},
		{"restore", "provisioner-secret", func(s map[string]string) error {
			_, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
				Name: restored, VolumeCapabilities: []*csi.VolumeCapability{mounted("")},
				Parameters: byClass, Secrets: s,
				VolumeContentSource: &csi.VolumeContentSource{
					Type: &csi.VolumeContentSource_Snapshot{
						Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: snap}}},
			})
			return err
		}},
		{"expand", "node-expand-secret", func(s map[string]string) error {
			_, err := d.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
				VolumeId: pvc, VolumePath: m.path("target"),
				CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * size}, Secrets: s,
			})
			return err
		}},
	} {
		before, err := m.store.List(t.Context())
		errtest.Must(t, err)

		for _, c := range []struct {
			situation string
			secrets   map[string]string
			says      string
		}{
			{"none", nil, call.secret},
			{"another key", secret(2), "wrapped by another key"},
			{"no key", map[string]string{keyring.SecretKey: "hunter2"}, "base64 of 32 bytes"},
		} {
			err := call.do(c.secrets)
			if Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), c.says) ||
				strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s, %s: %v: %v, want %q in it", call.name, c.situation, Code(err), err,
					c.says)
			}
			after, err := m.store.List(t.Context())
			if err != nil || !sameStates(before, after) {
				t.Errorf("%s, %s: states %+v, were %+v, %v", call.name, c.situation, after, before,
					err)
			}
		}

		if err := call.do(secret(1)); err != nil {
			t.Errorf("%s: %v", call.name, err)
		}
	}

	m.greets("target")
}

// sameStates reports whether a and b have the same volumes in the same states, in any order.
func sameStates(a, b []volume.State) bool {
	text := func(states []volume.State) []string {
		var out []string
		for _, st := range states {
			out = append(out, fmt.Sprintf("%+v", st))
		}
		slices.Sort(out)
		return out
	}
	return slices.Equal(text(a), text(b))
}

func TestVolumeOfAnotherNodeIsRefused(t *testing.T) {
	m, _ := running(t, mounted(""), nil)
	m.name = "node-2"
	d := m.process(0)
	if err := m.stage(d, mounted("")); Code(err) != codes.FailedPrecondition ||
		!strings.Contains(err.Error(), "node-1") {
		t.Errorf("%v: %v", Code(err), err)
	}
	if _, err := d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: pvc}); Code(err) !=
		codes.FailedPrecondition {
		t.Errorf("deleted on another node: %v", err)
	}
	// This code makes the scheduler try another node.
	if _, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: restored,
		VolumeCapabilities: []*csi.VolumeCapability{mounted("")},
		VolumeContentSource: &csi.VolumeContentSource{
			Type: &csi.VolumeContentSource_Volume{
				Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: pvc}}},
	}); Code(err) != codes.ResourceExhausted {
		t.Errorf("copied on another node: %v", err)
	}
}

// exhausted is a backend without a free loop device.
type exhausted struct {
	backend.Backend
	none bool
}

func (e *exhausted) Attach(ctx context.Context, v string) (backend.Device, error) {
	if e.none {
		return backend.Device{}, fmt.Errorf("attach %s: %w", v, blk.ErrNoLoop)
	}
	return e.Backend.Attach(ctx, v)
}

// If no loop device is free, a new volume and a volume with data both stay unchanged. They are
// staged once a loop device is free.
func TestLoopDevicesExhausted(t *testing.T) {
	m := newMachine(t)
	loops := &exhausted{none: true}
	m.config = func(c *Config) {
		set := c.Sets[BackendFile]
		loops.Backend, set.Backend = set.Backend, loops
	}
	d := m.process(0)
	m.made(d, mounted(""), nil)
	if err := m.stage(d, mounted("")); Code(err) != codes.ResourceExhausted {
		t.Errorf("a new volume: %v: %v", Code(err), err)
	}
	if st := m.state(pvc); st.Phase != volume.New || m.mounts.Made() != 0 ||
		m.disk(pvc).Writes() != 0 {
		t.Errorf("phase %s, %d file systems made, %d writes", st.Phase, m.mounts.Made(),
			m.disk(pvc).Writes())
	}

	loops.none = false
	errtest.Must(t, staged(m, d))
	errtest.Must(t, m.mounts.Write(m.path("target"), "greeting", "hello"),
		m.unpublish(d, "target"), m.unstage(d))

	before := m.disk(pvc).Writes()
	loops.none = true
	if err := m.stage(d, mounted("")); Code(err) != codes.ResourceExhausted ||
		m.disk(pvc).Writes() != before {
		t.Errorf("with data: %v: %v, %d writes", Code(err), err, m.disk(pvc).Writes()-before)
	}

	loops.none = false
	errtest.Must(t, staged(m, d))

	m.greets("target")
}
