package engine

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/worker"
)

func TestMain(m *testing.M) {
	if status, is := Child(); is {
		os.Exit(status)
	}
	os.Exit(nettest.Run(m))
}

// Streams of random bytes pass between two nodes with real TUNs and forwarding, in both directions
// at once, for each pair of engines.
func TestStreamsPassBetweenEngines(t *testing.T) {
	nettest.NeedTUN(t)
	nettest.NeedProgram(t, "ip")
	own, library := worker.EngineKubeveil, worker.EngineWireGuardGo
	for _, tc := range []struct {
		name    string
		engines [2]string
		shards  int
	}{
		{"kubeveil to kubeveil", [2]string{own, own}, 0},
		{"kubeveil to wireguard-go", [2]string{own, library}, 0},
		{"wireguard-go to kubeveil", [2]string{library, own}, 0},
		{"four shards", [2]string{own, own}, 4},
	} {
		for _, mtu := range []int{1500, 9000} {
			t.Run(fmt.Sprintf("%s, MTU %d", tc.name, mtu), func(t *testing.T) {
				// The path of a socket has at most 107 bytes.
				dir, err := os.MkdirTemp("/dev/shm", "kvtest")
				errtest.Must(t, err)
				defer os.RemoveAll(dir)
				w := &world{side: side{name: "test", engine: tc.engines[0]},
					engines: tc.engines, shards: tc.shards, mtu: mtu, dir: dir}
				defer w.close()

				errtest.Must(t, w.build(t.Context()))
				streamBothWays(t, w)
			})
		}
	}
}

// streamBothWays transfers random bytes over several streams each way, and checks that no TCP
// segment was altered.
func streamBothWays(t *testing.T, w *world) {
	t.Helper()
	const streams, size = 3, 4 << 20
	done := make(chan error, 2*streams)
	for range streams {
		go func() { done <- transfer(w, podA, podB, size) }()
		go func() { done <- transfer(w, podB, podA, size) }()
	}

	for range 2 * streams {
		if err := <-done; err != nil {
			for k := range 2 {
				b, _ := os.ReadFile(filepath.Join(w.dir, fmt.Sprint(k), "log"))
				t.Logf("log of node %d:\n%s", k, b)
			}
			t.Fatal(err)
		}
	}

	// TCP repairs altered segments, but the pods' kernels count their wrong checksums.
	for _, pod := range []int{podA, podB} {
		var out []byte
		if err := w.spaces[pod].Do(func() (err error) {
			out, err = os.ReadFile("/proc/thread-self/net/snmp")
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if n := tcpErrors(out); n != 0 {
			t.Errorf("%d segments with a wrong checksum arrived in pod %d", n, pod)
		}
	}
}

// tcpErrors returns InCsumErrors of TCP in /proc/net/snmp.
func tcpErrors(b []byte) (n int) {
	for line := range bytes.Lines(b) {
		f := bytes.Fields(line)
		if string(f[0]) == "Tcp:" && f[len(f)-1][0] >= '0' && f[len(f)-1][0] <= '9' {
			fmt.Sscan(string(f[len(f)-1]), &n)
		}
	}
	return n
}

// transfer sends random bytes in writes of random sizes and compares their sum.
func transfer(w *world, from, to, size int) error {
	var l net.Listener
	var c net.Conn
	if err := w.spaces[to].Do(func() (err error) {
		l, err = net.Listen("tcp4", podAddr(to)+":0")
		return err
	}); err != nil {
		return err
	}
	defer l.Close()
	if err := w.spaces[from].Do(func() (err error) {
		c, err = net.DialTimeout("tcp4", l.Addr().String(), 20*time.Second)
		return err
	}); err != nil {
		return err
	}
	defer c.Close()

	s, err := l.Accept()
	if err != nil {
		return err
	}
	defer s.Close()
	deadline := time.Now().Add(90 * time.Second)
	_ = c.SetDeadline(deadline)
	_ = s.SetDeadline(deadline)
	sent := make(chan []byte, 1)
	go func() {
		r := rand.NewChaCha8([32]byte{byte(from)})
		h := sha256.New()
		b := make([]byte, 200<<10)
		for left := size; left > 0; {
			n := min(left, 1+rand.IntN(len(b)))
			_, _ = r.Read(b[:n])
			h.Write(b[:n])
			if _, err := c.Write(b[:n]); err != nil {
				break
			}
			left -= n
		}
		sent <- h.Sum(nil)
	}()

	h := sha256.New()
	if n, err := io.CopyN(h, s, int64(size)); err != nil {
		return fmt.Errorf("%d of %d bytes arrived: %w", n, size, err)
	}
	if want := <-sent; !bytes.Equal(h.Sum(nil), want) {
		return fmt.Errorf("the received bytes differ from the sent bytes")
	}

	return nil
}

// The measurements of many flows and of the TLS proxies return positive figures.
func TestFlowsAndProxiesAreMeasured(t *testing.T) {
	nettest.NeedLong(t, "it only tries a measurement")
	nettest.NeedProgram(t, "haproxy")
	w := newWorld(t, 0, [2]string{})
	for _, flows := range []int{1, 64} {
		s, err := w.turns(t.Context(), flows, 200*time.Millisecond)
		if err != nil || s.Value <= 0 {
			t.Errorf("%d flows in turn: %+v, %v", flows, s, err)
		}
		s, err = w.throughput(t.Context(), flows, 200*time.Millisecond)
		if err != nil || s.Value <= 0 || s.CPU <= 0 {
			t.Errorf("%d streams: %+v, %v", flows, s, err)
		}
	}

	dir, err := os.MkdirTemp("/dev/shm", "kvtest")
	errtest.Must(t, err)
	defer os.RemoveAll(dir)
	proxies, err := build(t.Context(), side{name: tlsPair, file: "h"}, 1500, dir)
	defer proxies.close()
	errtest.Must(t, err)
	s, err := proxies.throughput(t.Context(), 4, 200*time.Millisecond)
	if err != nil || s.Value <= 0 || s.CPU <= 0 {
		t.Errorf("streams through proxies: %+v, %v", s, err)
	}
}
