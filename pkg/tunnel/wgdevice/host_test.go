package wgdevice_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/logtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/tunnel"
	"github.com/kubeveil/kubeveil/pkg/tunnel/wgdevice"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// veilWG is the built program.
var veilWG string

// init locks the main goroutine to the main thread, whose namespaces /proc/self shows. So no node
// of a test can run on that thread and change them.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	// It stays, and the next process links it only after a change.
	dir, err := filepath.Abs("../../../out/tunnel")
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir) // as /proc/PID/exe has it
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	veilWG = filepath.Join(dir, "veil-wg")
	if out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", veilWG,
		"github.com/kubeveil/kubeveil/cmd/veil-wg").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build veil-wg: %v\n%s", err, out)
		return 1
	}
	return nettest.Run(m)
}

// testNode is a node with a worker and a manager.
type testNode struct {
	*nettest.Host
	t     *testing.T
	key   wgkey.Private
	log   *logtest.Buffer
	super *exec.Cmd
	host  *wgdevice.Host
	m     *tunnel.Manager

	under netip.Prefix // on the underlay
	inner netip.Prefix // on the tunnel device
}

// family is the addresses that a test uses, outside and inside.
type family struct{ under, inner string }

var (
	ipv4 = family{"198.18.0.%d/24", "198.19.%d.1/24"}
	ipv6 = family{"fd42::%d/64", "fd42:%d::1/64"}
)

// device is the tunnel device of every test node: they do not share a mount namespace.
const device = "veil0"

// newNode makes a node whose device belongs to veil-wg, even if the kernel has WireGuard.
func newNode(t *testing.T, n int, f family) *testNode {
	t.Helper()
	return newNodeOf(t, n, f, wgdevice.ModeUserspace)
}

func newNodeOf(t *testing.T, n int, f family, mode wgdevice.Mode) *testNode {
	t.Helper()
	nettest.NeedTUN(t)
	node := &testNode{Host: nettest.NewHost(t, "/run"), t: t, log: &logtest.Buffer{}}
	node.under = netip.MustParsePrefix(fmt.Sprintf(f.under, n))
	node.inner = netip.MustParsePrefix(fmt.Sprintf(f.inner, n))
	var err error
	if node.key, err = wgkey.Generate(); err != nil {
		t.Fatal(err)
	}
	node.host, err = wgdevice.NewHost(wgdevice.HostConfig{Mode: mode,
		Log: slog.New(slog.NewTextHandler(node.log, nil))})
	errtest.Must(t, err)
	node.m = tunnel.NewManager(node.host, nil)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of node %d:\n%s", n, node.log)
		}
	})
	return node
}

// engineEnv names the engine of the suite. An empty value means the default.
const engineEnv = "KUBEVEIL_ENGINE"

// startWorker starts the supervisor; it and its children end with the test.
func (n *testNode) startWorker(extra ...string) {
	n.t.Helper()
	args := []string{"--log-level", "debug"}
	// The suite runs on either engine.
	if engine := os.Getenv(engineEnv); engine != "" {
		args = append(args, "--engine", engine)
	}
	cmd := exec.Command(veilWG, append(args, extra...)...)
	cmd.Stdout, cmd.Stderr = n.log, n.log
	cmd.WaitDelay = 5 * time.Second
	n.Run(n.t, cmd.Start)
	n.super = cmd
	n.t.Cleanup(func() {
		n.killChild(syscall.SIGKILL)
		if cmd.ProcessState == nil {
			cmd.Process.Signal(syscall.SIGTERM)
			cmd.Wait()
		}
		n.killChild(syscall.SIGKILL)
	})
}

// child returns the number of the device's process, or 0 when there is none.
func (n *testNode) child() int {
	var pid int
	n.Do(func() error {
		b, err := os.ReadFile(filepath.Join(abi.WorkerDir, device+".lock"))
		if err == nil {
			pid, _ = strconv.Atoi(strings.TrimSpace(string(b)))
		}
		return err
	})
	if exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); exe != veilWG {
		return 0
	}
	return pid
}

func (n *testNode) killChild(sig syscall.Signal) {
	if pid := n.child(); pid != 0 {
		syscall.Kill(pid, sig)
	}
}

// sync compares with the device itself, not with the memory of the Manager.
func (n *testNode) sync(spec tunnel.Spec) (tunnel.Changes, error) {
	n.m.Forget()
	var c tunnel.Changes
	var err error
	n.Do(func() error {
		c, err = n.m.Sync(context.Background(), spec)
		return err
	})
	return c, err
}

func (n *testNode) mustSync(spec tunnel.Spec) tunnel.Changes {
	n.t.Helper()
	c, err := n.sync(spec)
	errtest.Must(n.t, err)
	return c
}

// spec is the Spec of n with these peers.
func (n *testNode) spec(peers ...*testNode) tunnel.Spec {
	d := tunnel.Device{Name: device, ListenPort: 51820, Mark: abi.TunnelMark, PrivateKey: n.key,
		MTU: 1440}
	for _, p := range peers {
		d.Peers = append(d.Peers, tunnel.Peer{
			Name: "node-" + p.under.Addr().String(), PublicKey: p.key.Public(),
			Endpoint:   netip.AddrPortFrom(p.under.Addr(), 51820),
			AllowedIPs: []netip.Prefix{p.inner.Masked()},
		})
	}
	return tunnel.Spec{Devices: []tunnel.Device{d}, Prune: true}
}

// route adds routes into the tunnel for the peers' addresses.
func (n *testNode) route(peers ...*testNode) {
	n.t.Helper()
	nettest.AddAddr(n.t, n.NS, device, netip.PrefixFrom(n.inner.Addr(), n.inner.Addr().BitLen()))
	for _, p := range peers {
		nettest.AddRoute(n.t, n.NS, p.inner.Masked(), netip.Addr{}, device)
	}
}

// pair returns two nodes with a working tunnel between them.
func pair(t *testing.T, f family) (a, b *testNode) {
	t.Helper()
	return pairOf(t, f, wgdevice.ModeUserspace)
}

func pairOf(t *testing.T, f family, mode wgdevice.Mode) (a, b *testNode) {
	t.Helper()
	a, b = newNodeOf(t, 1, f, mode), newNodeOf(t, 2, f, mode)
	nettest.Veth(t,
		nettest.End{NS: a.NS, Name: "eth0", Addrs: []netip.Prefix{a.under}},
		nettest.End{NS: b.NS, Name: "eth0", Addrs: []netip.Prefix{b.under}})
	for _, n := range []*testNode{a, b} {
		n.startWorker()
		other := a
		if n == a {
			other = b
		}
		n.mustSync(n.spec(other))
		n.route(other)
	}
	return a, b
}

// listen opens a UDP socket on the node's inner address.
func (n *testNode) listen(port int) *net.UDPConn {
	n.t.Helper()
	var c *net.UDPConn
	n.Run(n.t, func() (err error) {
		c, err = net.ListenUDP("udp", &net.UDPAddr{IP: n.inner.Addr().AsSlice(), Port: port})
		return err
	})
	n.t.Cleanup(func() { c.Close() })
	return c
}

// stream sends a packet every two milliseconds until stop is called, and keeps when each came.
func stream(t *testing.T, from, to *testNode, port int) (arrivals func() []time.Time, stop func()) {
	t.Helper()
	tx, rx := from.listen(port), to.listen(port)
	var mu sync.Mutex
	var times []time.Time
	var wg sync.WaitGroup
	done := make(chan struct{})
	dst := netip.AddrPortFrom(to.inner.Addr(), uint16(port))
	wg.Go(func() {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				tx.WriteToUDPAddrPort([]byte(canary), dst)
			}
		}
	})

	wg.Go(func() {
		buf := make([]byte, 2000)
		for {
			if _, _, err := rx.ReadFromUDPAddrPort(buf); err != nil {
				select {
				case <-done:
					return
				default:
					continue
				}
			}
			mu.Lock()
			times = append(times, time.Now())
			mu.Unlock()
		}
	})

	var once sync.Once
	stop = func() {
		once.Do(func() {
			close(done)
			tx.Close()
			rx.Close()
			wg.Wait()
		})
	}

	t.Cleanup(stop)
	return func() []time.Time {
		mu.Lock()
		defer mu.Unlock()
		return append([]time.Time(nil), times...)
	}, stop
}

// canary is in the clear text of every packet of these tests.
const canary = "veil-canary-in-clear-text-3b1f"

// flows waits until a packet arrives after since, and returns the time of its arrival.
func flows(t *testing.T, what string, arrivals func() []time.Time, since time.Time) time.Time {
	t.Helper()
	var first time.Time
	nettest.Until(t, 10*time.Second, what, func() bool {
		for _, at := range arrivals() {
			if at.After(since) {
				first = at
				return true
			}
		}
		return false
	})
	return first
}

// links describes the device and its routes, without the parts that a process at the TUN changes.
func (n *testNode) links() string {
	var b strings.Builder
	n.OnLink(device, func(h *nl.Handle, l nl.Link) error {
		a := l.Attrs()
		fmt.Fprintf(&b, "%d %s %s group %#x mtu %d qlen %d\n", a.Index, a.Name, l.Type(), a.Group,
			a.MTU, a.TxQLen)

		for _, f := range []int{nl.FamilyV4, nl.FamilyV6} {
			routes, err := h.RouteListFiltered(f, &nl.Route{LinkIndex: a.Index}, nl.FilterOIF)
			if err != nil {
				return err
			}
			for _, r := range routes {
				fmt.Fprintf(&b, "%s table %d protocol %d\n", r.Dst, r.Table, r.Protocol)
			}
		}

		return nil
	})

	return b.String()
}

// dialSocket opens the device's configuration socket in the calling thread's mount namespace.
func dialSocket() (net.Conn, error) {
	return net.Dial("unix", filepath.Join(abi.WireGuardSocketDir, device+".sock"))
}

// read returns the present state of the devices as a host reads them.
func (n *testNode) read(host *wgdevice.Host) (st tunnel.LiveState) {
	n.t.Helper()
	n.Run(n.t, func() (err error) {
		st, err = host.Read(n.t.Context())
		return err
	})
	return st
}
