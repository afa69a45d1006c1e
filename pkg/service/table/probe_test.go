package table

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/kubeveil/kubeveil/pkg/nettest"
)

func TestProbe(t *testing.T) {
	nettest.NeedBPF(t)
	f, err := Probe()
	t.Logf("%+v, %v", f, err)
	if err != nil && !errors.Is(err, ErrNotSupported) {
		t.Error(err)
	}
}

func TestFeatureErrorSaysWhatToDo(t *testing.T) {
	err := error(&FeatureError{"programs at getpeername", "5.8", "use a newer kernel", ebpf.ErrNotSupported})
	if !errors.Is(err, ErrNotSupported) || !errors.Is(err, ebpf.ErrNotSupported) {
		t.Error("cannot be told apart")
	}
	if want := "not supported by this kernel: programs at getpeername (Linux 5.8): not supported: use a newer kernel"; err.Error() != want {
		t.Errorf("got %s", err)
	}
}
