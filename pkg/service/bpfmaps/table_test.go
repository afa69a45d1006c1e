package bpfmaps

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/google/go-cmp/cmp"

	"github.com/kubeveil/kubeveil/internal/bpfobj"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/planner"
	"github.com/kubeveil/kubeveil/pkg/service/probe"
	"github.com/kubeveil/kubeveil/pkg/service/servicetest"
)

func TestServicesWorkAtSockets(t *testing.T) {
	cgroup := nettest.NewCgroup(t)
	n := start(t, config(t), lab)
	if diff := cmp.Diff(attachedAll("attached"), n.attach(t, cgroup)); diff != "" {
		t.Error(diff)
	}

	h := newHands(t, cgroup)
	for _, to := range []string{"198.18.0.1", "[fd42::1]"} {
		tcp, udp := h.dial("tcp", to+":80"), h.dial("udp", to+":53")
		if tcp.Peer != to+":80" || udp.Peer != to+":53" || !slices.Contains(backends, tcp.Answer) ||
			!slices.Contains(backends, udp.Answer) {
			t.Errorf("connections to %s by TCP and UDP: %+v, %+v", to, tcp, udp)
		}
	}

	for _, to := range []string{"198.18.0.3", "[fd42::3]"} {
		if r := h.do(order{Do: "dial", Net: "tcp", To: to + ":80"}); !r.Refused {
			t.Errorf("%s, without backends: %+v", to, r)
		}
	}

	if got := n.counted(t, "SOCKET_REFUSED"); got != 2 {
		t.Errorf("%d refusals are counted, want 2", got)
	}
	if tcp, udp := n.counted(t, "SOCKET_TCP"), n.counted(t, "SOCKET_UDP"); tcp < 2 || udp < 2 {
		t.Errorf("choices: %d for TCP and %d for UDP are counted, want 2 of each", tcp, udp)
	}

	h.dial("tcp", "198.18.0.2:80")
	if m, err := n.Remembered(); err != nil || m.Clients != 1 || m.Replies != 0 || m.Sends != 0 {
		t.Errorf("remembered are %+v, %v", m, err)
	}
	if changed := n.attach(t, cgroup); len(changed) > 0 {
		t.Errorf("the second AttachSockets changed %v", changed)
	}
}

// The flow tables take about a hundredth of the memory, within bounds. A kernel that sees slightly
// less memory has the same sizes.
func TestFlowTablesFollowTheMemory(t *testing.T) {
	const bytesPerEntry = 144
	for gib, want := range map[float64]uint32{0.5: 1 << 14, 0.98: 1 << 15, 1.9: 1 << 16,
		3.8: 1 << 17, 4: 1 << 17, 7.7: 1 << 18, 15: 1 << 19, 1024: 1 << 19} {
		memory := gib * (1 << 30)
		m := MemoryFor(uint64(memory))
		entries := m.TCP + m.Opening + m.UDP + m.Quotas
		if m.TCP != want || entries != 2*want {
			t.Errorf("%v GiB: %+v, want %d of TCP and as many of the others", gib, m, want)
		}
		if share := float64(entries) * bytesPerEntry / memory; gib > 0.5 && share > 0.0125 {
			t.Errorf("%v GiB: flow tables take %.4f of the memory", gib, share)
		}
	}
}

// TestRefusalWithoutSetRetval is for kernels before 5.18. There, the kernel refuses a connection to
// a service without backends because its new destination has no listener.
func TestRefusalWithoutSetRetval(t *testing.T) {
	cgroup, c := nettest.NewCgroup(t), config(t)
	all, err := specs(probe.Features{})
	errtest.Must(t, err)
	table, err := open(c, probe.Features{SetRetval: false}, all)
	errtest.Must(t, err)
	n := startOn(t, table, lab)
	n.attach(t, cgroup)
	h := newHands(t, cgroup)
	for _, o := range []order{
		{Net: "tcp", To: "198.18.0.3:80"}, {Net: "tcp", To: "[fd42::3]:80"},
		{Net: "udp", To: "198.18.0.3:53"}, {Net: "udp", To: "[fd42::3]:53"},
		{Net: mapped, To: "198.18.0.3:53"},
	} {
		o.Do = "dial"
		if r := h.do(o); !r.Refused {
			t.Errorf("%s %s, without backends: %+v", o.Net, o.To, r)
		}
	}
	h.dial("tcp", "198.18.0.1:80")
}

// TestRestart restarts the daemon without an effect on other programs. Open connections stay, new
// connections succeed all the time, and the next daemon writes nothing.
func TestRestart(t *testing.T) {
	cgroup, c := nettest.NewCgroup(t), config(t)
	n := start(t, c, lab)
	n.attach(t, cgroup)
	h := newHands(t, cgroup)
	conns := []result{h.dial("tcp", "198.18.0.1:80"), h.dial("udp", "198.18.0.1:53"),
		h.dial("tcp", "[fd42::2]:80"), h.dial("udp", "[fd42::2]:53")}
	sticky := h.dial("tcp", "198.18.0.2:80").Answer
	h.do(order{Do: "load", Net: "tcp", To: "198.18.0.1:80"})

	for range 5 {
		errtest.Must(t, n.Close())
		table := opened(t, c)
		defer table.Close()
		p, _ := planner.New("node-1", table.limits)
		n = node{table, p}
		n.adopt(t)
		lab(p)
		if writes, changed := n.apply(t), n.attach(t, cgroup); writes != 0 || len(changed) > 0 {
			t.Errorf("a restart wrote %d entries and %v", writes, changed)
		}
	}
	h.expectHeld(conns, sticky)
}

// expectHeld checks that connections and affinity are as before, and that the load met no error.
func (h *hands) expectHeld(conns []result, sticky string) {
	h.t.Helper()
	for _, c := range conns {
		if got := h.ask(c.ID); got != c.Answer {
			h.t.Errorf("a connection to %s went to %s, then to %s", c.Peer, c.Answer, got)
		}
	}

	if got := h.dial("tcp", "198.18.0.2:80").Answer; got != sticky {
		h.t.Errorf("affinity was to %s and is to %s", sticky, got)
	}
	if load := h.do(order{Do: "stop"}); load.Err != "" || load.Count == 0 {
		h.t.Errorf("meanwhile: %+v", load)
	}
}

// TestUpgrade replaces the programs in force by another version, and the maps by maps of other
// sizes.
func TestUpgrade(t *testing.T) {
	for name, change := range map[string]func(*Config, []*ebpf.CollectionSpec){
		"other programs": func(_ *Config, all []*ebpf.CollectionSpec) {
			for _, p := range all[0].Programs {
				// No jump crosses this place, so all jumps stay correct.
				p.Instructions = slices.Insert(slices.Clone(p.Instructions), 1,
					asm.Mov.Reg(asm.R1, asm.R1))
			}
		},
		"larger table": func(c *Config, _ []*ebpf.CollectionSpec) { c.Limits.BackendSlots *= 2 },
		"larger memory": func(c *Config, _ []*ebpf.CollectionSpec) {
			c.Memory = Memory{2048, 2048, 2048, 2048, 2048, 2048, 2048, 2048}
		},
	} {
		t.Run(name, func(t *testing.T) {
			cgroup, c := nettest.NewCgroup(t), config(t)
			n := start(t, c, lab)
			n.attach(t, cgroup)
			h := newHands(t, cgroup)
			conns := []result{h.dial("tcp", "198.18.0.1:80"), h.dial("udp", "198.18.0.1:53"),
				h.dial("udp", "[fd42::1]:53")}
			sticky := h.dial("tcp", "198.18.0.2:80").Answer
			h.do(order{Do: "load", Net: "tcp", To: "[fd42::1]:80"})
			all, err := specs(probe.Features{SetRetval: true})
			errtest.Must(t, err)

			change(&c, all)
			table, err := open(c, probe.Features{SetRetval: true}, all)
			errtest.Must(t, err)

			n = startOn(t, table, lab)
			changed := n.attach(t, cgroup)
			if len(changed) == 0 || len(n.attach(t, cgroup)) > 0 {
				t.Errorf("the first AttachSockets changed %v", changed)
			}

			h.expectHeld(conns, sticky)

			// From now on, writes change the table in force.
			n.PutSlice(servicetest.SliceOf("plain", "198.18.1.3"))
			n.apply(t)
			if got := h.dial("tcp", "198.18.0.1:80").Answer; got != "198.18.1.3" {
				t.Errorf("after a change %s answers", got)
			}
		})
	}
}

// TestOpenAfterADeathWithinOpen opens a table of which only a part is left, because a process died
// while it replaced the table.
func TestOpenAfterADeathWithinOpen(t *testing.T) {
	for _, left := range [][]string{{mapFrontends}, {mapBackends},
		{mapFrontends, mapBackends}, {mapSourceRanges}} {
		c := config(t)
		start(t, c, lab).Close()
		for _, name := range tableMaps {
			if !slices.Contains(left, name) {
				errtest.Must(t, os.Remove(filepath.Join(c.Dir, name)))
			}
		}
		table := opened(t, c)
		s, err := table.State()
		table.Close()
		if err != nil || len(s.Frontends)+len(s.Backends)+len(s.SourceRanges) > 0 {
			t.Errorf("with %v left: %+v, %v", left, s, err)
		}
	}
}

// Maps of the last release hold up to 70 MiB of a node, and no program writes them any more.
func TestMapsOfTheLastReleaseGo(t *testing.T) {
	c := config(t)
	pins := []string{"service_flows", "service_turned", "service_members"}
	for _, name := range pins {
		m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8,
			MaxEntries: 1})
		errtest.Must(t, err)
		errtest.Must(t, m.Pin(filepath.Join(c.Dir, name)))
		errtest.Must(t, m.Close())
	}
	errtest.Must(t, opened(t, c).Close())
	for _, name := range pins {
		if _, err := os.Stat(filepath.Join(c.Dir, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still pinned: %v", name, err)
		}
	}
}

func TestRemove(t *testing.T) {
	cgroup, c := nettest.NewCgroup(t), config(t)
	n := start(t, c, lab)
	n.attach(t, cgroup)
	h := newHands(t, cgroup)
	h.dial("tcp", "198.18.0.1:80")
	n.Close()

	guards, err := filepath.Glob(filepath.Join(c.Dir, "drop_*"))
	errtest.Must(t, err)
	taken, err := Remove(c.Dir)
	errtest.Must(t, err)
	left, err := os.ReadDir(c.Dir)
	if err != nil || len(left) == 0 || len(left) != len(guards) {
		t.Errorf("after Remove %v are left, %v; it removed %v", left, err, taken)
	}

	if r := h.do(order{Do: "dial", Net: "tcp", To: "198.18.0.1:80"}); r.Err == "" || r.Refused {
		t.Errorf("a service is still translated: %+v", r)
	}
	for _, pin := range guards {
		errtest.Must(t, os.Remove(pin))
	}
	if taken, err := Remove(c.Dir); err != nil || len(taken) != 1 {
		t.Errorf("the second Remove removed %v, %v", taken, err)
	}
	if taken, err := Remove(c.Dir); err != nil || len(taken) > 0 {
		t.Errorf("the third Remove removed %v, %v", taken, err)
	}
}

func TestRefusals(t *testing.T) {
	nettest.NeedBPF(t)
	c := config(t)
	n := start(t, c, lab)
	if _, err := n.AttachSockets(t.TempDir()); !errors.Is(err, probe.ErrNoCgroup) {
		t.Errorf("attach to no cgroup: %v", err)
	}
	if _, err := n.AttachSockets("/nowhere"); !errors.Is(err, probe.ErrNoCgroup) {
		t.Errorf("attach to nothing: %v", err)
	}
	bad := c
	bad.Limits.BackendSlots = 1000
	if _, err := Open(bad); !errors.Is(err, service.ErrLimits) {
		t.Errorf("invalid limits: %v", err)
	}
	bad = c
	bad.Dir = t.TempDir()
	if _, err := Open(bad); !errors.Is(err, bpfobj.ErrNoBPFFS) {
		t.Errorf("no bpffs: %v", err)
	}
}
