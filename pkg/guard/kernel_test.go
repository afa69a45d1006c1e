package guard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/bpfobj"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/internal/tchook"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/guard/chains"
)

const pinDir = "/sys/fs/bpf/kubeveil"

// bothHooks runs a test with tcx, where there is one, and with clsact.
func bothHooks(t *testing.T, fn func(t *testing.T, hk hooks)) {
	nettest.NeedBPF(t)
	t.Run("tcx", func(t *testing.T) {
		needTCX(t)
		fn(t, tcx)
	})
	t.Run("clsact", func(t *testing.T) { fn(t, clsact) })
}

func needTCX(t *testing.T) {
	t.Helper()
	hk, err := probeHooks()
	errtest.Must(t, err)
	if _, ok := hk.(tchook.AtTCX); !ok {
		nettest.Skip(t, nettest.NoTCX, "before Linux 6.6")
	}
}

// open opens a guard that attaches in the given way.
func open(hk hooks) (*Guard, error) {
	if err := bpfobj.MakeDir(pinDir); err != nil {
		return nil, err
	}
	all, err := specs()
	if err != nil {
		return nil, err
	}
	return openWith(pinDir, quiet(), hk, all)
}

func (n *node) read(t *testing.T) *Kernel {
	t.Helper()
	var s *Kernel
	n.Run(t, func() (err error) {
		s, err = n.g.Read()
		return err
	})
	return s
}

// pins returns the programs that are attached at a link, as "pin" or "pin of an earlier version".
func pins(s *Kernel, name string, hook Hook) []string {
	var out []string
	for _, l := range s.Links {
		if l.Name != name {
			continue
		}
		for _, p := range s.Points[Point{l.Index, hook}].Ours {
			if !p.Current {
				p.Pin += " of an earlier version"
			}
			out = append(out, p.Pin)
		}
	}
	return out
}

func TestApplyTwiceChangesNothing(t *testing.T) {
	bothHooks(t, func(t *testing.T, hk hooks) {
		n := newNode(t, hk)
		if ops := n.apply(t); len(ops) != 0 {
			t.Errorf("second Apply did %v", ops)
		}
		got := n.read(t)
		want := Plan(lab(), got.Links)
		if ops := Diff(got, want); len(ops) != 0 {
			t.Errorf("kernel differs from plan: %v", ops)
		}
		if diff := cmp.Diff(want.Ranges, got.Ranges,
			cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
			t.Error(diff)
		}
	})
}

func TestSettingsComeAndGo(t *testing.T) {
	n := newNode(t, clsact)
	var many Settings
	many.Ranges = prefixes("198.18.0.0/15", "198.18.0.0/16", "fd42::/16", "255.255.255.0/24")
	for i := range 3000 { // more than one netlink message holds
		many.NodeAddrs = append(many.NodeAddrs,
			netip.AddrFrom4([4]byte{198, 19, byte(i >> 8), byte(i)}))
	}
	for _, s := range []Settings{many, lab(), {}, many} {
		n.Run(t, func() error {
			if _, err := n.g.Apply(s); err != nil {
				return err
			}
			again, err := n.g.Apply(s)
			if err == nil && len(again) > 0 {
				err = fmt.Errorf("second Apply did %v", again)
			}
			return err
		})
	}
}

func TestWhatIsFlushedByHandComesBack(t *testing.T) {
	bothHooks(t, func(t *testing.T, hk hooks) {
		n := newNode(t, hk)
		nft, tc := nettest.NeedProgram(t, "nft"), nettest.NeedProgram(t, "tc")
		for _, c := range []struct {
			situation string
			break_    func() error
		}{
			{"all of nftables", func() error { return nettest.Command(nft, "flush", "ruleset") }},
			{"all hooks of the table", func() error {
				return nettest.Command(nft, "add table inet "+abi.NFTGuardTable+" { flags dormant; }")
			}},
			{"all hooks of the table of pods", func() error {
				return nettest.Command(nft, "add table inet "+abi.NFTPodTable+" { flags dormant; }")
			}},
			{"a chain", func() error {
				return nettest.Command(nft, "flush", "chain", "inet", abi.NFTGuardTable, "postrouting")
			}},
			{"a set", func() error {
				return nettest.Command(nft, "flush", "set", "inet", abi.NFTGuardTable, "ranges4")
			}},
			{"an accepting rule in front", func() error {
				return nettest.Command(nft, "insert", "rule", "inet", abi.NFTGuardTable, "prerouting",
					"accept")
			}},
			{"the chain of pods", func() error {
				return nettest.Command(nft, "flush", "chain", "inet", abi.NFTPodTable,
					abi.NFTPodChain)
			}},
			{"the chain of pods, made anew elsewhere", func() error {
				return nettest.Command(nft, "delete chain inet kubeveil_pods prerouting; add chain inet "+
					"kubeveil_pods prerouting { type filter hook input priority 7; }")
			}},
			{"an accepting rule before that on pods", func() error {
				return nettest.Command(nft, "insert", "rule", "inet", abi.NFTPodTable,
					abi.NFTPodChain, "accept")
			}},
			{"a set of pods, made anew for something else", func() error {
				return nettest.Command(nft, "flush chain inet kubeveil_pods prerouting; delete set inet "+
					"kubeveil_pods pods4; add set inet kubeveil_pods pods4 { type ipv4_addr; }")
			}},
			{"the table of pods", func() error {
				return nettest.Command(nft, "delete", "table", "inet", abi.NFTPodTable)
			}},
			{"a map", func() error {
				return set(n.g.maps[abi.PinRanges], keyOf(lab().Ranges[0]), false)
			}},
			{"a program", func() error {
				if _, ok := hk.(tchook.AtClsact); ok {
					return nettest.Command(tc, "qdisc", "del", "dev", "u0", "clsact")
				}
				id, err := bpfobj.ProgramID(n.g.progs[abi.PinGuardEgress])
				if err != nil {
					return err
				}
				u0, err := net.InterfaceByName("u0")
				if err != nil {
					return err
				}

				return hk.Detach(nil, u0.Index, Egress, id)
			}},
		} {
			t.Run(c.situation, func(t *testing.T) {
				n.Run(t, c.break_)
				if ops := n.apply(t); len(ops) == 0 {
					t.Error("Apply saw nothing")
				}
				if ops := n.apply(t); len(ops) != 0 {
					t.Errorf("second Apply did %v", ops)
				}
			})
		}
	})
}

func TestNewLinkHasTheTableUntilItHasPrograms(t *testing.T) {
	bothHooks(t, func(t *testing.T, hk hooks) {
		n := newNode(t, hk)
		n.cable(t, "u1", "198.19.1.1/24", "198.19.1.2/24", "fd42:a::1/64", "fd42:a::2/64")
		if got := pins(n.read(t), "u1", Egress); got != nil {
			t.Fatalf("u1 has %v already", got)
		}
		for _, f := range []struct{ name, inRange, route, via, node string }{
			{"IPv4", "198.18.5.5", "198.18.5.0/24", "198.19.1.2", "198.19.0.2"},
			{"IPv6", "fd42:1::5", "fd42:1::/64", "fd42:a::2", "fd42:9::2"},
		} {
			nettest.AddRoute(t, n.NS, netip.MustParsePrefix(f.route), netip.MustParseAddr(f.via),
				"u1")
			n.loses(t, f.name+" to a range", "dst_in_range", n, f.inRange, 0)
			n.loses(t, f.name+" of a pod to a range", "pod_to_range", n, f.inRange, abi.PodMark)
			n.loses(t, f.name+" of a pod to a node", "pod_to_node", n, f.node, abi.PodMark)
			n.delivers(t, f.name+" to a neighbour", f.via)
		}
		// The other direction: the peer has an address of a range.
		nettest.AddAddr(t, n.peer, "lo", netip.MustParsePrefix("198.18.9.9/32"),
			netip.MustParsePrefix("fd42:1::9/128"))
		n.losesFrom(t, "198.18.9.9", "198.19.1.1")
		n.losesFrom(t, "fd42:1::9", "fd42:a::1")
	})
}

// The table leaves packets with the tunnels' mark to the programs.
func TestMarkOfTunnelsOpensNothing(t *testing.T) {
	bothHooks(t, func(t *testing.T, hk hooks) {
		n := newNode(t, hk)
		n.Run(t, func() error {
			return errors.Join(nettest.Command("ip", "route", "add", "198.18.0.0/16", "via", "198.19.0.2"),
				nettest.Command("ip", "-6", "route", "add", "fd42:1::/48", "via", "fd42:9::2"))
		})
		for _, to := range []string{"198.18.5.5", "fd42:1::5"} {
			n.loses(t, "a process' packet to "+to, "dst_in_range", n, to, abi.TunnelMark)
			n.loses(t, "a pod's packet to "+to, "pod_to_range", n, to,
				abi.TunnelMark|abi.PodMark)
		}
		for _, to := range []string{"198.19.0.2", "fd42:9::2"} {
			n.loses(t, "a pod's packet to "+to, "pod_to_node", n, to,
				abi.TunnelMark|abi.PodMark)
		}
	})
}

func TestGuardOutlivesTheDaemonAndIsAdopted(t *testing.T) {
	bothHooks(t, func(t *testing.T, hk hooks) {
		n := newNode(t, hk)
		ids := n.g.ids
		n.Run(t, func() error {
			if err := n.g.Close(); err != nil {
				return err
			}
			for _, name := range chains.TableNames { // so that only the programs are left
				if _, err := nft.Delete(name); err != nil {
					return err
				}
			}
			return nil
		})

		out := packetSocket(t, n, "u0", unix.SOCK_RAW)
		frame := ether(ipPacket("198.18.1.1", "198.19.128.1", 1), unix.ETH_P_IP)
		if _, err := unix.Write(out, frame); err != nil && !errors.Is(err, unix.ENOBUFS) {
			t.Fatal(err)
		}

		n.Run(t, func() (err error) {
			n.g, err = open(hk)
			return err
		})
		t.Cleanup(func() { n.g.Close() })
		if diff := cmp.Diff(ids, n.g.ids); diff != "" {
			t.Errorf("programs were not adopted: %s", diff)
		}

		nettest.Until(t, patience, "the packet is counted",
			func() bool { return n.counters(t)["src_in_range"] == 1 })
		if diff := cmp.Diff([]string{"write nftables table " + abi.NFTPodTable,
			"write nftables table " + abi.NFTGuardTable}, texts(n.apply(t))); diff != "" {
			t.Error(diff)
		}
	})
}

func TestWatchGuardsLinksThatAppear(t *testing.T) {
	bothHooks(t, func(t *testing.T, hk hooks) {
		n := newNode(t, hk)
		var log bytes.Buffer
		n.g.log = slog.New(slog.NewTextHandler(&log, nil))
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- n.NS.Do(func() error { return n.g.Watch(ctx, func() {}) }) }()
		t.Cleanup(func() {
			cancel()
			errtest.Check(t, <-ended)
			if strings.Contains(log.String(), "lost") {
				t.Errorf("an ordinary end is a warning: %s", &log)
			}
		})

		has := func(link string, hook Hook, want ...string) {
			t.Helper()
			nettest.Until(t, patience, fmt.Sprintf("%s %s has %v", link, hook, want), func() bool {
				return slices.Equal(pins(n.read(t), link, hook), want)
			})
		}
		n.cable(t, "u1", "198.19.1.1/24", "198.19.1.2/24", "fd42:a::1/64", "fd42:a::2/64")
		has("u1", Ingress, abi.PinGuardIngress)
		has("u1", Egress, abi.PinGuardEgress)
		nettest.TUN(t, n.NS, "tt1")

		has("tt1", Egress, abi.PinGuardEgressL3)
		has("tt1", Ingress, abi.PinGuardIngressL3)
		n.Run(t, func() error { return setGroup("tt1", abi.TunnelGroup) })
		has("tt1", Egress)
		has("tt1", Ingress)
	})
}

func TestForeignProgramsStayAndDoNotGoFirst(t *testing.T) {
	bothHooks(t, func(t *testing.T, hk hooks) {
		n := newNode(t, hk)
		var other *ebpf.Program
		n.Run(t, func() (err error) {
			// A foreign program of the same name that accepts every packet (TC_ACT_OK skips the
			// programs behind it).
			if other, err = foreign(abi.PinGuardEgress, asm.Mov.Imm(asm.R0, 0)); err != nil {
				return err
			}
			return nl.OnLink("u0", func(h *nl.Handle, u0 nl.Link) error {
				return hk.Attach(h, u0.Attrs().Index, Egress, "other", other)
			})
		})

		defer other.Close()
		if got, want := texts(n.apply(t)),
			[]string{"move guard_egress of u0 egress to the front"}; !slices.Equal(got, want) {
			t.Errorf("Apply did %v, want %v", got, want)
		}
		if ops := n.apply(t); len(ops) != 0 {
			t.Errorf("second Apply did %v", ops)
		}

		out, in := packetSocket(t, n, "u0", unix.SOCK_RAW),
			packetSocket(t, n.peer, "u0", unix.SOCK_RAW)
		frame := ether(ipPacket("198.18.1.1", "198.19.128.1", 1), unix.ETH_P_IP)
		if got := n.fate(t, func() error {
			_, err := unix.Write(out, frame)
			return err
		}, in, frame); got != "src_in_range" {
			t.Errorf("the other program let it pass: %q", got)
		}

		n.Run(t, func() error { _, err := n.remove(); return err })
		id, err := bpfobj.ProgramID(other)
		errtest.Must(t, err)

		n.OnLink("u0", func(h *nl.Handle, u0 nl.Link) error {
			ids, err := hk.List(h, new(tchook.Places), u0.Attrs().Index, Egress)
			if err == nil && !slices.Equal(ids, []ebpf.ProgramID{id}) {
				err = fmt.Errorf("attached are %v, want the other's %v alone", ids, id)
			}
			return err
		})
	})
}

// remove removes the guard by its own hooks, and closes it.
func (n *node) remove() ([]string, error) {
	taken, err := remove(pinDir, n.g.hooks)
	return taken, errors.Join(err, n.g.Close())
}

func TestRemoveLeavesNothing(t *testing.T) {
	bothHooks(t, func(t *testing.T, hk hooks) {
		n := newNode(t, hk)
		var taken []string
		n.Run(t, func() (err error) {
			taken, err = n.remove()
			return err
		})

		want := []string{"directory " + pinDir, "nftables table kubeveil_guard",
			"nftables table kubeveil_pods", "program guard_egress at u0 egress",
			"program guard_ingress at u0 ingress"}
		for _, name := range append(slices.Clone(pinnedMaps), pinnedPrograms...) {
			want = append(want, "pin "+filepath.Join(pinDir, name))
		}

		slices.Sort(want)
		slices.Sort(taken)
		if diff := cmp.Diff(want, taken); diff != "" {
			t.Error(diff)
		}

		n.Run(t, func() error {
			if _, err := os.Stat(pinDir); !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("%s is left: %w", pinDir, err)
			}
			again, err := remove(pinDir, hk)
			if err == nil && len(again) > 0 {
				err = fmt.Errorf("second Remove took %v", again)
			}
			return err
		})
	})
}

func TestRemoveLeavesOthersFiles(t *testing.T) {
	n := newNode(t, clsact)
	n.Run(t, func() error {
		if err := n.g.maps[abi.PinNodes].Pin(filepath.Join(pinDir, "theirs")); err != nil {
			return err
		}
		if _, err := n.remove(); err != nil {
			return err
		}
		_, err := os.Stat(filepath.Join(pinDir, "theirs"))
		return err
	})
}

func TestOpenSaysWhatIsMissing(t *testing.T) {
	host := nettest.NewHost(t)
	t.Run("no bpffs", func(t *testing.T) {
		_, err := Open(filepath.Join(t.TempDir(), "kubeveil"), quiet())
		if !errors.Is(err, ErrNoBPFFS) {
			t.Errorf("got %v, want %v", err, ErrNoBPFFS)
		}
	})
	t.Run("a file in the way", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "file")
		filetest.Write(t, path, nil, 0o600)
		if _, err := Open(filepath.Join(path, "kubeveil"), quiet()); !errors.Is(err,
			syscall.ENOTDIR) {
			t.Errorf("got %v, want %v", err, syscall.ENOTDIR)
		}
	})

	t.Run("not permitted", func(t *testing.T) {
		host.Run(t, func() error {
			if err := dropCapabilities(); err != nil { // the thread ends with the test
				return err
			}
			g, err := Open(pinDir, quiet())
			if !errors.Is(err, ErrNotPermitted) {
				return fmt.Errorf("got %v, %w, want %w", g, err, ErrNotPermitted)
			}
			return nil
		})
	})
}
