package guard

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// An address for which its set has no room keeps no other change from being made, and a change of
// many addresses does not fill the log.
func TestFullSetHoldsUpNoOtherChange(t *testing.T) {
	nettest.NeedBPF(t)
	const room = 64
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 16, ValueSize: 1,
		MaxEntries: room})
	errtest.Must(t, err)
	defer m.Close()
	var log bytes.Buffer
	g := &Guard{maps: map[string]*ebpf.Map{abi.PinVIPs: m},
		log: slog.New(slog.NewTextHandler(&log, nil))}

	set := addrSet{pin: abi.PinVIPs, what: "service address"}
	change := func(from, n int, add bool) (ops []Op) {
		for i := from; i < from+n; i++ {
			ops = append(ops, set.op(netip.AddrFrom4([4]byte{198, 19, 0, byte(i)}), add))
		}
		return ops
	}
	done, _, err := g.do(nil, change(0, room, true))
	errtest.Must(t, err)
	if n := strings.Count(log.String(), "\n"); len(done) != room || n > said+1 {
		t.Errorf("%d changes made, %d lines in the log", len(done), n)
	}

	done, _, err = g.do(nil, append(change(room, 40, true), change(0, 40, false)...))
	if err == nil || strings.Count(err.Error(), "\n") > said || len(done) != 40 {
		t.Errorf("%d changes made, want the 40 that remove addresses; error %v", len(done), err)
	}
	if done, _, err = g.do(nil, change(room, 40, true)); err != nil || len(done) != 40 {
		t.Errorf("with room again %d changes are made, error %v", len(done), err)
	}
}
