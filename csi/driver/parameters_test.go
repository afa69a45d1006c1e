package driver

import (
	"errors"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

func TestDefaults(t *testing.T) {
	set := volume.NewSet(volume.Config{})
	keys := map[string]keyring.Provider{keyring.NameFile: provider(t, 1),
		keyring.NameKMS: provider(t, 2)}
	for name, c := range map[string]struct {
		config Config
		want   string
	}{
		"nothing but disks": {Config{Sets: map[string]*volume.Set{BackendDisk: set}},
			"backend=disk,discard=never,fsck=preen,keys=secret,tuning=throughput"},
		"all there is": {Config{Sets: map[string]*volume.Set{BackendDisk: set,
			BackendFile: set}, Keys: keys},
			"backend=file,discard=never,fsck=preen,keys=kms,tuning=throughput"},
		"said": {Config{Sets: map[string]*volume.Set{BackendFile: set}, Keys: keys,
			Defaults: Parameters{Keys: keyring.NameFile, Tuning: dmcrypt.Latency}},
			"backend=file,discard=never,fsck=preen,keys=file,tuning=latency"},
	} {
		m := newMachine(t)
		c.config.Node, c.config.Mounts = "n", m.mounts
		d, err := New(c.config)
		if err != nil || d.Defaults.String() != c.want {
			t.Errorf("%s: %v, %v, want %s", name, d.Defaults, err, c.want)
		}
	}

	if _, err := New(Config{Node: "n", Mounts: newMachine(t).mounts}); err == nil {
		t.Error("a driver without a backend")
	}
}

// A volume can be unmounted even if its key provider was removed from the configuration.
func TestKeysNoLongerConfigured(t *testing.T) {
	m, _ := running(t, mounted(""), nil)
	m.keys = map[string]keyring.Provider{}
	d := m.process(0)
	errtest.Check(t, errors.Join(m.unpublish(d, "target"), m.unstage(d)))
	if err := m.stage(d, mounted("")); Code(err) != codes.FailedPrecondition {
		t.Errorf("staged without a provider: %v", err)
	}
}

func FuzzKept(f *testing.F) {
	d, err := New(Config{Node: "n", Mounts: newMachine(f).mounts,
		Sets: map[string]*volume.Set{BackendFile: volume.NewSet(volume.Config{})}})
	errtest.Must(f, err)
	f.Add("backend=file,discard=never,fsck=preen,keys=kms,tuning=latency")
	f.Add("")
	f.Add("discard=online,discard=,=,")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := d.kept(text)
		if err != nil {
			return
		}
		if again, err := d.kept(p.String()); again != p || err != nil {
			t.Errorf("%q is %+v, and then %+v, %v", text, p, again, err)
		}
	})
}
