package driver

import (
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
	"google.golang.org/grpc/codes"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/csi/mount"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

func TestUnstageWhileBusy(t *testing.T) {
	m, d := running(t, mounted(""), nil)
	if err := m.unstage(d); Code(err) != codes.FailedPrecondition ||
		!strings.Contains(err.Error(), m.path("target")) {
		t.Errorf("unstaged while published: %v", err)
	}
	if _, err := d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: pvc}); Code(err) !=
		codes.FailedPrecondition {
		t.Errorf("deleted while published: %v", err)
	}

	m.mounts.Hold(m.path("target"), true)
	if err := m.unpublish(d, "target"); Code(err) != codes.FailedPrecondition {
		t.Errorf("unpublished while busy: %v", err)
	}

	m.greets("target")
	m.mounts.Hold(m.path("target"), false)
	errtest.Must(t, m.unpublish(d, "target"))

	m.mounts.Hold(m.path(staging), true)
	if err := m.unstage(d); Code(err) != codes.FailedPrecondition {
		t.Errorf("unstaged while busy: %v", err)
	}
	if m.state(pvc).Writer == "" {
		t.Error("the volume was released while it was mounted")
	}

	m.mounts.Hold(m.path(staging), false)
	errtest.Check(t, m.unstage(d))
}

func TestPublishTwice(t *testing.T) {
	m, d := running(t, mounted(""), nil)
	if err := m.publish(d, mounted(""), "target", false); err != nil {
		t.Errorf("published again: %v", err)
	}
	if err := m.publish(d, mounted(""), "target", true); Code(err) != codes.AlreadyExists {
		t.Errorf("published again, read-only: %v", err)
	}
	if err := m.publish(d, mounted(""), "second", true); err != nil {
		t.Errorf("published to a second pod: %v", err)
	}
	if err := m.mounts.Write(m.path("second"), "x", "y"); err == nil {
		t.Error("the second pod may write")
	}
	if all, err := m.mounts.List(); len(all) != 3 || err != nil {
		t.Errorf("mounted %+v, %v", all, err)
	}
	single := mounted("")
	single.AccessMode.Mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	if err := m.publish(d, single, "third", false); Code(err) != codes.FailedPrecondition {
		t.Errorf("published to a single pod while other pods use it: %v", err)
	}
	if _, err := os.Stat(m.path("third")); err == nil {
		t.Error("a target was made for a refused request")
	}
}

// The kubelet makes a further bind mount of a pod's device, and may request the same device again
// after that.
func TestKubeletBindsDevices(t *testing.T) {
	single := block()
	single.AccessMode.Mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	m, d := running(t, single, nil)
	errtest.Must(t, m.mounts.Bind(m.path("target"), filepath.Join(m.folder("dev"), "target"),
		false))
	if err := m.publish(d, single, "target", false); err != nil {
		t.Errorf("published again: %v", err)
	}
	if err := m.publish(d, single, "second", false); Code(err) != codes.FailedPrecondition {
		t.Errorf("published to a second pod: %v", err)
	}
}

func TestKeyServiceAway(t *testing.T) {
	m, _ := running(t, mounted(""), nil)
	away := &switched{Provider: m.keys[keyring.NameFile], away: true}
	m.keys[keyring.NameFile] = away
	d := m.process(0)

	// A new process adopts a staged volume without the key, so the volume keeps working.
	if err := errors.Join(m.stage(d, mounted("")),
		m.publish(d, mounted(""), "second", false)); err != nil {
		t.Errorf("staged again: %v", err)
	}
	m.greets("second")

	errtest.Must(t, m.unpublish(d, "target"), m.unpublish(d, "second"))
	// That process has no key to seal the volume. The plain text is removed, but the volume is not
	// released.
	if err := m.unstage(d); Code(err) != codes.Unavailable || m.state(pvc).Writer == "" {
		t.Errorf("unstaged: %v, writer %q", err, m.state(pvc).Writer)
	}
	if err := m.stage(d, mounted("")); Code(err) != codes.Unavailable {
		t.Errorf("staged again: %v: %v", Code(err), err)
	}
	if m.mounts.Made() != 1 || len(m.engine.Live()) != 0 {
		t.Errorf("%d made, mappings %v", m.mounts.Made(), m.engine.Live())
	}
	away.away = false
	open := m.state(pvc).Epoch
	errtest.Must(t, m.unstage(d))
	if st := m.state(pvc); st.Writer != "" || st.Epoch <= open || d.unsealed.Load() != 0 {
		t.Errorf("unstaged once it is back: writer %q, epoch %d, %d before", st.Writer, st.Epoch,
			open)
	}
	errtest.Must(t, staged(m, d))
	m.greets("target")
}

// The operator of the network may cut it at any moment. The volume is still sealed, and an image of
// the disk from the time when it was open is refused.
func TestCutNetworkLeavesNoVolumeUnsealed(t *testing.T) {
	for name, restarts := range map[string]bool{"one process": false, "restarted": true} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			service := &switched{Provider: m.keys[keyring.NameFile]}
			m.keys[keyring.NameFile] = service
			d := m.process(0)
			m.made(d, mounted(""), nil)
			errtest.Must(t, m.stage(d, mounted("")))
			image := m.disk(pvc).Clone()

			if service.away = true; restarts {
				d = m.process(0)
			}
			if err := m.unstage(d); restarts != (Code(err) == codes.Unavailable) ||
				!restarts && err != nil {
				t.Errorf("unstaged: %v", err)
			}
			if service.away = false; restarts {
				errtest.Must(t, m.unstage(d))
			}
			if n := d.unsealed.Load(); n != 0 || m.state(pvc).Writer != "" {
				t.Errorf("%d closed unsealed, writer %q", n, m.state(pvc).Writer)
			}

			m.disk(pvc).Become(image)
			if err := m.stage(d, mounted("")); !errors.Is(err, crypt.OlderImage) {
				t.Errorf("an image from the time when it was open: %v", err)
			}
		})
	}
}

// switched is a provider that can be away.
type switched struct {
	keyring.Provider
	away bool
}

func (s *switched) Unwrap(ctx context.Context, b keyring.Binding,
	w keyring.Wrapped) (*keyring.Secret, error) {
	if s.away {
		return nil, fmt.Errorf("test: %w", keyring.ErrUnavailable)
	}
	return s.Provider.Unwrap(ctx, b, w)
}

func (s *switched) KeyID(ctx context.Context) (string, error) {
	if s.away {
		return "", keyring.ErrUnavailable
	}
	return s.Provider.KeyID(ctx)
}

func TestZombieMapping(t *testing.T) {
	m, _ := running(t, mounted(""), nil)
	dead := m.engine.Live()[0]
	m.engine.Kill(dead)
	d := m.process(0)
	health := func(want ...string) {
		t.Helper()
		r, err := d.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: pvc})
		errtest.Must(t, err)
		var got []string
		for _, h := range r.VolumeHealth.HealthStatuses {
			got = append(got, h.Reason)
		}
		if !slices.Equal(got, want) {
			t.Errorf("health %v, want %v", got, want)
		}
	}

	health(reasonDiskDead)
	errtest.Must(t, m.stage(d, mounted("")))

	health()
	m.greets(staging)
	if live := m.engine.Live(); len(live) != 1 || live[0] == dead || m.mounts.Made() != 1 {
		t.Errorf("mappings %v after %s, %d made", live, dead, m.mounts.Made())
	}
	if err := m.publish(d, mounted(""), "target", false); err != nil {
		t.Errorf("published over the mount of the dead mapping: %v", err)
	}

	m.greets("target")
	m.engine.Edit(m.engine.Live()[0], func(mapping *dmcrypt.Mapping) { mapping.Suspended = true })
	health(reasonSuspended)
	errtest.Must(t, d.Recover(t.Context()))

	health()
	m.reboot()
	health(reasonNotMapped)
}

func TestPolicies(t *testing.T) {
	for name, c := range map[string]struct {
		parameters map[string]string
		discards   bool
		options    []string
		trimmed    bool
	}{
		"default": {nil, false, []string{"errors=remount-ro", "noatime"}, false},
		"discard batch": {map[string]string{"discard": "batch"}, true,
			[]string{"errors=remount-ro", "noatime"}, true},
		"discard online": {map[string]string{"discard": "online"}, true,
			[]string{"errors=remount-ro", "noatime", "discard"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			how := mounted("")
			how.GetMount().MountFlags = []string{"noatime"}
			m, d := running(t, how, c.parameters)
			if got := m.mounts.Options(m.path(staging)); !slices.Equal(got, c.options) {
				t.Errorf("mounted with %v, want %v", got, c.options)
			}
			mapping, err := m.engine.Lookup(t.Context(), m.engine.Live()[0])
			errtest.Must(t, err)

			st := m.state(pvc)
			for _, discard := range []bool{true, false} {
				same := dmcrypt.Expected(st.UUID, st.Epoch, st.Payload, m.numbers[pvc],
					dmcrypt.Throughput, discard).Differs(mapping) == ""
				if same != (discard == c.discards) {
					t.Errorf("the mapping lets discards through: %v, want %v", discard, c.discards)
				}
			}

			if n, err := d.Trim(t.Context()); (n > 0) != c.trimmed || err != nil {
				t.Errorf("trimmed %d, %v", n, err)
			}
		})
	}
}

func TestFsck(t *testing.T) {
	for policy, want := range map[string]codes.Code{"preen": codes.DataLoss, "never": codes.OK} {
		m, d := running(t, mounted(""), map[string]string{"fsck": policy})
		o, err := d.anySet.Find(t.Context(), pvc)
		errtest.Must(t, err)
		errtest.Must(t, m.mounts.Damage(o.Mapping.Path), m.unpublish(d, "target"),
			m.unstage(d))
		if err := m.stage(d, mounted("")); Code(err) != want {
			t.Errorf("%s: %v: %v, want %v", policy, Code(err), err, want)
		}
	}
}

func TestExpandRefuses(t *testing.T) {
	m, d := running(t, mounted(""), nil)
	m.room = 4 * size
	expand := func(path string, required, limit int64) error {
		_, err := d.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
			VolumeId: pvc, VolumePath: m.path(path),
			CapacityRange: &csi.CapacityRange{RequiredBytes: required, LimitBytes: limit},
		})
		return err
	}
	for name, c := range map[string]struct {
		err  error
		code codes.Code
	}{
		"a path of another volume":     {expand("other", 2*size, 0), codes.NotFound},
		"limit below the present size": {expand("target", 0, size/2), codes.OutOfRange},
		"no size is the present one":   {expand("target", 0, 0), codes.OK},
		"no room":                      {expand("target", 8*size, 0), codes.ResourceExhausted},
		"smaller succeeds":             {expand("target", size/2, 0), codes.OK},
		"to the byte":                  {expand("target", size+1, size+4096), codes.OK},
	} {
		if Code(c.err) != c.code {
			t.Errorf("%s: %v: %v, want %v", name, Code(c.err), c.err, c.code)
		}
	}

	m.greets("target")
	if got := m.state(pvc).Payload; got != size+4096 {
		t.Errorf("%d bytes", got)
	}
}

func TestReplacedSecret(t *testing.T) {
	m := newMachine(t)
	d := m.process(0)
	m.made(d, mounted(""), map[string]string{"keys": "secret"})
	stage := func(secrets map[string]string) error {
		_, err := d.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{
			VolumeId: pvc, StagingTargetPath: m.folder(staging), VolumeCapability: mounted(""),
			Secrets: secrets,
		})
		return err
	}
	both := map[string]string{keyring.SecretKey: secret(2)[keyring.SecretKey],
		keyring.SecretPreviousKey: secret(1)[keyring.SecretKey]}
	for _, s := range []map[string]string{secret(1), both, secret(2)} {
		errtest.Must(t, stage(s), m.unstage(d))
	}
	if err := stage(secret(1)); Code(err) != codes.InvalidArgument {
		t.Errorf("the previous key still opens: %v", err)
	}
}

func TestExpandADevice(t *testing.T) {
	m, d := running(t, block(), nil)
	// This is a path of the kubelet to a device.
	r, err := d.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
		VolumeId: pvc, VolumePath: "/dev/loop7", VolumeCapability: block(),
		CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * size},
	})
	if err != nil || r.CapacityBytes != 2*size || m.state(pvc).Payload != 2*size ||
		m.mounts.Made() != 0 {
		t.Errorf("%v, %v", r, err)
	}
}

func TestTakeOver(t *testing.T) {
	m, _ := running(t, mounted(""), nil)
	m.reboot()
	from := ""
	m.config = func(c *Config) {
		c.TakeOver = func(context.Context, string) (string, error) { return from, nil }
	}
	m.name = "node-2"
	d := m.process(0)
	if err := m.stage(d, mounted("")); Code(err) != codes.FailedPrecondition {
		t.Errorf("taken over without a request: %v", err)
	}

	from = "node-1"
	errtest.Must(t, staged(m, d))

	m.greets("target")
	// Other nodes do not rewrap its key, not even the node from which the volume was taken.
	if r, err := d.Rewrap(t.Context()); r != (Rewrapped{Current: 1}) || err != nil {
		t.Errorf("wrapped %+v, %v", r, err)
	}

	m.name = "node-1"
	if r, err := m.process(0).Rewrap(t.Context()); r != (Rewrapped{}) || err != nil {
		t.Errorf("the former node wrapped %+v, %v", r, err)
	}

	// That node is gone too.
	m.reboot()
	m.name, from = "node-3", "node-2"
	d = m.process(0)
	if err := staged(m, d); err != nil || m.state(pvc).Writer != "node-3" {
		t.Fatalf("taken over again: %v, writer %q", err, m.state(pvc).Writer)
	}

	m.greets("target")
	// The request ends once it has been fulfilled.
	from = ""
	if err := errors.Join(m.unpublish(d, "target"), m.unstage(d)); err != nil ||
		m.state(pvc).Writer != "" {
		t.Errorf("%v, writer %q", err, m.state(pvc).Writer)
	}
}

func TestOneCallAtATime(t *testing.T) {
	m, d := running(t, mounted(""), nil)
	started, goOn := make(chan struct{}), make(chan struct{})
	hook := m.mounts.Hook
	m.mounts.Hook = func(op, path string) error {
		if op == "unmount" && path == m.path("target") {
			close(started)
			<-goOn
		}
		return hook(op, path)
	}
	done := make(chan error, 1)
	go func() { done <- m.unpublish(d, "target") }()
	<-started
	if err := m.unpublish(d, "other"); Code(err) != codes.Aborted {
		t.Errorf("a second call: %v", err)
	}
	m.mounts.Hook = hook
	close(goOn)
	errtest.Check(t, <-done)
	if err := m.unpublish(d, "other"); err != nil {
		t.Errorf("after the first: %v", err)
	}
}

func TestRewrap(t *testing.T) {
	m, d := running(t, mounted(""), nil)
	errtest.Must(t, snapshotted(m, d))

	// A provider that is not used by any volume is not called.
	m.keys[keyring.NameKMS] = &switched{away: true}
	if r, err := d.Rewrap(t.Context()); r != (Rewrapped{Current: 2}) || err != nil {
		t.Errorf("%+v, %v", r, err)
	}

	// As with --key-file and --previous-key-file.
	m.keys[keyring.NameFile] = keyring.Chain{named{provider(t, 2), keyring.NameFile},
		m.keys[keyring.NameFile]}
	d = m.process(0)
	if r, err := d.Rewrap(t.Context()); r != (Rewrapped{Changed: 2}) || err != nil {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err := d.Rewrap(t.Context()); r != (Rewrapped{Current: 2}) || err != nil {
		t.Errorf("%+v, %v", r, err)
	}

	m.greets("target")
	// The old key is no longer needed.
	m.keys[keyring.NameFile] = named{provider(t, 2), keyring.NameFile}
	m.reboot()
	d = m.process(0)
	errtest.Must(t, staged(m, d))

	m.greets("target")
	ctx, stop := context.WithCancel(t.Context())
	rounds := 0
	d.Every(ctx, time.Hour, "test", func(context.Context) error {
		rounds++
		stop()
		return mount.ErrBusy
	})
	if rounds != 1 {
		t.Errorf("%d rounds", rounds)
	}

	rounds = 0
	d.Until(t.Context(), time.Millisecond, "test", func(context.Context) error {
		if rounds++; rounds < 3 {
			return mount.ErrBusy
		}
		return nil
	})
	if rounds != 3 {
		t.Errorf("%d rounds until there was no error", rounds)
	}
}
