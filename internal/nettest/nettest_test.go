package nettest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/netns"
	"github.com/kubeveil/kubeveil/internal/packetring"
)

func TestMain(m *testing.M) { os.Exit(Run(m)) }

func TestMaySkip(t *testing.T) {
	for _, tt := range []struct {
		name, ci, expected string
		want               bool
	}{
		{"a developer's machine", "", "", true},
		{"ci, reason not expected", "true", "", false},
		{"ci, another reason expected", "true", "no-tcx", false},
		{"ci, reason expected among others", "true", "no-tcx,no-root", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := maySkip(NoRoot, tt.ci, tt.expected); got != tt.want {
				t.Errorf("maySkip = %v, want %v", got, tt.want)
			}
		})
	}
}

func TestSkipsAreLogged(t *testing.T) {
	log := filepath.Join(t.TempDir(), "skips")
	t.Setenv(SkipLogEnv, log)
	t.Setenv("CI", "")
	t.Run("inner", func(t *testing.T) { Skip(t, NoTCX, "old kernel") })
	b := filetest.Read(t, log)
	var rec skipRecord
	errtest.Must(t, json.Unmarshal(b, &rec))
	if want := (skipRecord{"TestSkipsAreLogged/inner", NoTCX, "old kernel"}); rec != want {
		t.Errorf("logged %+v, want %+v", rec, want)
	}
}

var (
	addrA = netip.MustParseAddr("198.18.0.1")
	addrB = netip.MustParseAddr("198.18.0.2")
	v6A   = netip.MustParseAddr("fd42::1")
	v6B   = netip.MustParseAddr("fd42::2")
)

// pair returns two new namespaces that are connected by a veth pair.
func pair(t *testing.T) (a, b *NS) {
	a, b = NewNS(t), NewNS(t)
	Veth(t,
		End{NS: a, Name: "nta", MTU: 1400, Addrs: []netip.Prefix{netip.PrefixFrom(addrA, 24),
			netip.PrefixFrom(v6A, 64)}},
		End{NS: b, Name: "ntb", MTU: 1400, Addrs: []netip.Prefix{netip.PrefixFrom(addrB, 24),
			netip.PrefixFrom(v6B, 64)}})
	return a, b
}

// send sends n datagrams from ns.
func send(ns *NS, to netip.Addr, n int, payload string) error {
	return ns.Do(func() error {
		c, err := net.Dial("udp", netip.AddrPortFrom(to, 9).String())
		if err != nil {
			return err
		}
		defer c.Close()
		for n > 0 {
			_, err := c.Write([]byte(payload))
			// The error of an earlier datagram (no listener) is returned instead of sending.
			if err != nil && !errors.Is(err, unix.ECONNREFUSED) {
				return err
			}
			if err == nil {
				n--
			}
		}
		return nil
	})
}

func TestCaptureSeesEveryFrameOnBothEnds(t *testing.T) {
	a, b := pair(t)
	out := NewCapture(t, a, SnifferOptions{Link: "nta"})
	in := NewCapture(t, b, SnifferOptions{})

	const n = 500
	for _, to := range []netip.Addr{addrB, v6B} {
		errtest.Must(t, send(a, to, n, "kubeveil canary"))
	}

	count := func(frames []Frame, outgoing bool) (got int) {
		for _, f := range frames {
			if f.Outgoing == outgoing && strings.HasSuffix(string(f.Data), "kubeveil canary") &&
				f.Length == len(f.Data) &&
				f.Index > 1 && time.Since(f.Time) < time.Minute && isUDP(f.Data) {
				got++
			}
		}
		return got
	}

	Until(t, 10*time.Second, "all datagrams arrive",
		func() bool { return count(in.Frames(), false) == 2*n })
	if got := count(out.All(t), true); got != 2*n {
		t.Errorf("sender's end saw %d frames go out, want %d", got, 2*n)
	}
	if got := count(in.All(t), false); got != 2*n {
		t.Errorf("receiver's end saw %d frames come in, want %d", got, 2*n)
	}
}

// isUDP reports whether a frame is a UDP packet. An ICMP error that quotes a UDP packet does not
// count.
func isUDP(frame []byte) bool {
	switch {
	case len(frame) > 23 && frame[12] == 0x08 && frame[13] == 0x00:
		return frame[23] == unix.IPPROTO_UDP
	case len(frame) > 20 && frame[12] == 0x86 && frame[13] == 0xdd:
		return frame[20] == unix.IPPROTO_UDP
	}
	return false
}

func TestCaptureReportsDropsOfATooSmallRing(t *testing.T) {
	a, _ := pair(t)
	hold := make(chan struct{})
	var s *Sniffer
	a.Run(t, func() (err error) {
		s, err = OpenSniffer(SnifferOptions{Link: "nta", Ring: 2 * packetring.BlockSize},
			func(Frame) { <-hold })
		return err
	})
	err := send(a, addrB, 5000, strings.Repeat("x", 1300))
	close(hold)
	stats, stopErr := s.Stop()
	if err != nil || stopErr != nil {
		t.Fatal(err, stopErr)
	}
	if stats.Drops == 0 || stats.Frames == 0 {
		t.Errorf("stats = %+v, want frames and drops", stats)
	}
}

func TestCaptureOutlivesItsLink(t *testing.T) {
	a, _ := pair(t)
	c := NewCapture(t, a, SnifferOptions{Link: "nta"})
	h := a.Handle()
	link, err := h.LinkByName("nta")
	errtest.Must(t, err)
	errtest.Must(t, h.LinkDel(link))
	Until(t, 5*time.Second, "the capture notices", func() bool {
		stats, err := c.Stop()
		return err == nil && stats.Downs > 0
	})
}

func TestCaptureKeepsVLANTag(t *testing.T) {
	a, b := pair(t)
	c := NewCapture(t, b, SnifferOptions{Link: "ntb"})
	frame := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 0x81, 0, 0, 7,
		0x88, 0xb5}, "tagged payload that is long enough to be a frame"...)
	a.Run(t, func() error { return SendFrames("nta", frame) })
	Until(t, 5*time.Second, "the tagged frame arrives whole", func() bool {
		for _, f := range c.Frames() {
			if string(f.Data) == string(frame) {
				return true
			}
		}
		return false
	})
}

func TestLookupAppliesRoutes(t *testing.T) {
	a, _ := pair(t)
	AddRoute(t, a, netip.MustParsePrefix("198.19.0.0/16"), addrB, "nta")
	h := a.Handle()
	for _, tt := range []struct {
		dst, device string
		gateway     netip.Addr
		unreachable bool
	}{
		{"198.18.0.2", "nta", netip.Addr{}, false},
		{"198.19.1.1", "nta", addrB, false},
		{"198.18.0.1", "lo", netip.Addr{}, false},
		{"fd42::2", "nta", netip.Addr{}, false},
		{"198.18.9.9", "", netip.Addr{}, true},
		{"fd42:9::9", "", netip.Addr{}, true},
	} {
		hop, err := Lookup(h, netip.MustParseAddr(tt.dst), 0)
		errtest.Must(t, err)
		if hop.Device != tt.device || hop.Gateway != tt.gateway ||
			hop.Unreachable != tt.unreachable {
			t.Errorf("lookup of %s: %s, want %+v", tt.dst, hop, tt)
		}
	}
}

func TestHostHasNamespacesOfItsOwn(t *testing.T) {
	const dir = "/run/kubeveil-nettest/deep"
	h := NewHost(t, dir)
	file := filepath.Join(dir, "x")
	h.Run(t, func() error { return os.WriteFile(file, []byte("x"), 0o600) })
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("stat of the host's file outside: %v, want it not to exist", err)
	}
	h.Run(t, func() error { return os.Mkdir("/sys/fs/bpf/nettest-only", 0o700) })
	if _, err := os.Stat("/sys/fs/bpf/nettest-only"); !os.IsNotExist(err) {
		t.Errorf("the host's bpffs is the machine's: %v", err)
	}
	TUN(t, h.NS, "nttun")
	if _, err := net.InterfaceByName("nttun"); err == nil {
		t.Error("the host's link is in the machine's namespace")
	}
}

func TestSettleFindsWhatIsLeft(t *testing.T) {
	NeedRoot(t)
	// If a namespace of another test is closed later, the kernel may reuse its number for the new
	// namespace, and the test would confuse the two.
	Until(t, 5*time.Second, "the namespaces of other tests to be closed", func() bool {
		return !slices.Contains(descriptors(), "net")
	})
	before := holdings()
	f, err := os.CreateTemp(t.TempDir(), "")
	errtest.Must(t, err)

	quit := make(chan struct{})
	go func() { <-quit }()
	ns, err := netns.New()
	errtest.Must(t, err)

	leaks := strings.Join(settle(before, 0), "\n")
	for _, want := range []string{"TestSettleFindsWhatIsLeft", "descriptor of net", f.Name()} {
		if !strings.Contains(leaks, want) {
			t.Errorf("leaks:\n%s\nwant one of %q", leaks, want)
		}
	}

	close(quit)
	f.Close()
	ns.Close()
	if leaks := settle(before, 5*time.Second); len(leaks) > 0 {
		t.Errorf("leaks after all was closed: %v", leaks)
	}
}

// The machine's mounts include the mounts of all packages that are tested at the same time.
func TestSettleLeavesMountsOfOthers(t *testing.T) {
	NeedRoot(t)
	NeedBPF(t)
	others := t.TempDir()
	errtest.Must(t, unix.Mount("bpf", others, "bpf", 0, ""))
	t.Cleanup(func() {
		errtest.Check(t, unix.Unmount(others, unix.MNT_DETACH))
	})
	ours := BPFFS(t)
	if found := namespaceMounts(); slices.Contains(found, others) || !slices.Contains(found, ours) {
		t.Errorf("mounts %v: want %s, and not %s", found, ours, others)
	}
}

// Namespaces that the tests of another package have at the same time do not count as a leak.
// Namespaces of this process do.
func TestNamespacesOfAnotherTestProcess(t *testing.T) {
	own := fmt.Sprintf("/run/netns/kvtest%d-a", os.Getpid())
	for path, want := range map[string]bool{own: false, "/run/netns/kvtest1-a": true,
		"/run/netns/kvbench1-g1500a": true, "/run/netns/node-1": false, "/tmp/kvtest1-a": false} {
		if got := ofAnotherProcess(path); got != want {
			t.Errorf("%s is of another process: %t, want %t", path, got, want)
		}
	}
}
