package wgdevice_test

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/tunnel"
	"github.com/kubeveil/kubeveil/pkg/tunnel/wgdevice"
	"github.com/kubeveil/kubeveil/pkg/worker"
)

// recovery bounds the interruption of traffic by a killed worker. The aim is a second; a busy
// machine gets more.
const recovery = 3 * time.Second

func TestKilledWorkerComesBack(t *testing.T) {
	for _, tc := range []struct {
		name string
		// ab and ba are the directions with traffic; b's worker is killed.
		ab, ba bool
		family family
	}{
		{"one way, the killed side receives", true, false, ipv4},
		{"one way, the killed side sends", false, true, ipv4},
		{"both ways", true, true, ipv4},
		{"one way over ipv6, the killed side receives", true, false, ipv6},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, b := pair(t, tc.family)
			wire := nettest.NewCapture(t, a.NS, nettest.SnifferOptions{Link: "eth0"})
			var all []func() []time.Time
			if tc.ab {
				arrivals, _ := stream(t, a, b, 4001)
				all = append(all, arrivals)
			}

			if tc.ba {
				arrivals, _ := stream(t, b, a, 4002)
				all = append(all, arrivals)
			}

			for _, arrivals := range all {
				flows(t, "traffic before the kill", arrivals, time.Time{})
			}

			before, pid := b.links(), b.child()
			for range 3 {
				killed := time.Now()
				b.killChild(syscall.SIGKILL)
				nettest.Until(t, recovery, "a new process",
					func() bool { p := b.child(); return p != 0 && p != pid })
				pid = b.child()
				back := time.Now()
				for _, arrivals := range all {
					first := flows(t, "traffic after the kill", arrivals, back)
					t.Logf("process back after %s, traffic after %s",
						back.Sub(killed).Round(time.Millisecond),
						first.Sub(killed).Round(time.Millisecond))
					if took := first.Sub(killed); took > recovery {
						t.Errorf("traffic came back after %s, want at most %s", took, recovery)
					}
				}
			}

			if after := b.links(); after != before {
				t.Errorf("device and routes changed:\nbefore %s\nafter %s", before, after)
			}

			onlyTunnel(t, wire.All(t))
		})
	}
}

// onlyTunnel fails for the canary in clear, for a fragment, and for an outer
// packet that may be fragmented.
func onlyTunnel(t *testing.T, frames []nettest.Frame) {
	t.Helper()
	onlyTunnelOf(t, frames, tunnel.Userspace)
}

// onlyTunnelOf allows for the kernel's WireGuard, which does not set DF
// (drivers/net/wireguard/socket.c, send4): its outer packets need only be whole.
func onlyTunnelOf(t *testing.T, frames []nettest.Frame, kind tunnel.Kind) {
	t.Helper()
	const df, more = 0x4000, 0x3fff // the second: more fragments, or an offset
	tunnelled := 0
	for _, f := range frames {
		if bytes.Contains(f.Data, []byte(canary)) {
			t.Fatal("clear text on the wire")
		}
		if len(f.Data) < 54 {
			continue
		}

		ip := f.Data[14:]
		switch binary.BigEndian.Uint16(f.Data[12:]) {
		case unix.ETH_P_IP:
			flags := binary.BigEndian.Uint16(ip[6:])
			if ip[9] == unix.IPPROTO_UDP && (flags&more != 0 ||
				kind == tunnel.Userspace && flags != df) {
				t.Fatalf("outer packet of %s has flags and fragment offset %#x", kind, flags)
			}
			if ip[9] == unix.IPPROTO_UDP {
				tunnelled++
			}
		case unix.ETH_P_IPV6:
			if ip[6] == unix.IPPROTO_FRAGMENT {
				t.Fatal("outer packet is a fragment")
			}
			if ip[6] == unix.IPPROTO_UDP {
				tunnelled++
			}
		}
	}

	if tunnelled == 0 {
		t.Fatal("no tunnel packet was seen")
	}
}

func TestSyncAgainChangesNothing(t *testing.T) {
	a, b := pair(t, ipv4)
	arrivals, _ := stream(t, a, b, 4001)
	flows(t, "traffic", arrivals, time.Time{})
	// A Manager that knows nothing is a veild that was started again.
	a.m = tunnel.NewManager(a.host, nil)
	for range 2 {
		if c := a.mustSync(a.spec(b)); !c.Empty() {
			t.Fatalf("changes on a running tunnel: %+v", c)
		}
	}
}

func TestSupervisorDeathLeavesDataPath(t *testing.T) {
	a, b := pair(t, ipv4)
	arrivals, _ := stream(t, a, b, 4001)
	flows(t, "traffic", arrivals, time.Time{})
	pid := b.child()
	b.super.Process.Kill()
	b.super.Process.Wait()
	flows(t, "traffic without supervisor", arrivals, time.Now())

	b.startWorker()
	nettest.Until(t, 5*time.Second, "adoption", func() bool {
		return strings.Contains(b.log.String(), "adopted the living device process")
	})
	if worker.HandsOver(os.Getenv(engineEnv)) {
		nettest.Until(t, 5*time.Second, "a successor", func() bool {
			return strings.Contains(b.log.String(), "device taken over with its sessions")
		})
		pid = b.child()
	}
	if now := b.child(); now != pid {
		t.Fatalf("process %d was replaced by %d", pid, now)
	}
	syscall.Kill(pid, syscall.SIGKILL)
	nettest.Until(t, recovery, "a new process", func() bool {
		p := b.child()
		return p != 0 && p != pid
	})
	flows(t, "traffic after the adopted process died", arrivals, time.Now())
}

func TestSupervisorEndKeepsDevice(t *testing.T) {
	a, b := pair(t, ipv4)
	before := b.links()
	pid := b.child()
	b.super.Process.Signal(syscall.SIGTERM)
	if err := b.super.Wait(); err != nil {
		t.Fatalf("supervisor: %v", err)
	}
	if syscall.Kill(pid, 0) == nil {
		t.Fatal("the device's process lives on")
	}
	if after := b.links(); after != before {
		t.Fatalf("device and routes changed:\nbefore %s\nafter %s", before, after)
	}
	if _, err := b.sync(b.spec(a)); !errors.Is(err, wgdevice.ErrNoWorker) {
		t.Fatalf("sync without a worker: %v, want ErrNoWorker", err)
	}
	b.startWorker()
	b.mustSync(b.spec(a))
	arrivals, _ := stream(t, a, b, 4001)
	flows(t, "traffic after the start", arrivals, time.Time{})
}

func TestRemoveAll(t *testing.T) {
	for _, tc := range []struct {
		name   string
		worker bool
	}{{"with a living worker", true}, {"with a dead worker", false}} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode(t, 1, ipv4)
			n.startWorker()
			n.mustSync(n.spec())
			if !tc.worker {
				n.super.Process.Kill()
				n.super.Process.Wait()
				n.killChild(syscall.SIGKILL)
			}

			var took []string
			n.Run(t, func() (err error) {
				took, err = n.host.RemoveAll(t.Context())
				return err
			})
			t.Logf("took %q", took)
			var left []string
			n.Run(t, func() error {
				st, err := n.host.Read(t.Context())
				if len(st.Devices) > 0 {
					left = append(left, st.Devices[0].Name)
				}
				for _, pattern := range []string{abi.WorkerDir + "/*.json",
					abi.WorkerDir + "/*.state", abi.WireGuardSocketDir + "/*"} {
					files, _ := filepath.Glob(pattern)
					left = append(left, files...)
				}
				return err
			})

			if len(took) == 0 || len(left) > 0 {
				t.Fatalf("took %q, left %q", took, left)
			}
		})
	}
}

func TestPortInUse(t *testing.T) {
	n := newNode(t, 1, ipv4)
	n.startWorker()
	var fd int
	n.Run(t, func() (err error) {
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err == nil {
			err = unix.Bind(fd, &unix.SockaddrInet4{Port: 51820})
		}
		return err
	})
	if _, err := n.sync(n.spec()); !errors.Is(err, wgdevice.ErrPortInUse) {
		t.Errorf("sync: %v, want ErrPortInUse", err)
	}
	unix.Close(fd)
	n.mustSync(n.spec())
}

// A process that takes requests and does not answer them is named. It holds up no reading for ever,
// and when it continues, the device is read.
func TestProcessThatStandsStillIsNamed(t *testing.T) {
	n := newNode(t, 1, ipv4)
	n.startWorker()
	n.mustSync(n.spec())
	pid := n.child()
	errtest.Must(t, syscall.Kill(pid, syscall.SIGSTOP))
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })

	_, err := n.sync(n.spec())
	if !errors.Is(err, wgdevice.ErrStill) || !strings.Contains(err.Error(), device) {
		t.Errorf("sync: %v, want ErrStill and the device", err)
	}
	errtest.Must(t, syscall.Kill(pid, syscall.SIGCONT))
	if st := n.read(n.host); len(st.Devices) != 1 || !st.Devices[0].Served {
		t.Errorf("read %+v after it continues", st)
	}
}

func TestKeysAreNotLogged(t *testing.T) {
	a, b := pair(t, ipv4)
	arrivals, _ := stream(t, a, b, 4001)
	flows(t, "traffic", arrivals, time.Time{})
	key := b.key.Bytes()
	hexKey := hex.EncodeToString(key[:])

	// The library quotes a broken configuration.
	b.Run(t, func() error {
		c, err := dialSocket()
		if err != nil {
			return err
		}
		defer c.Close()
		c.Write([]byte("set=1\nprivate_key:" + hexKey + "\n\n"))
		buf := make([]byte, 64)
		_, err = c.Read(buf)
		return err
	})

	// A process writes its log beside its answers, so one that is killed may lose lines.
	nettest.Until(t, recovery, "the quoted line", func() bool {
		return strings.Contains(b.log.String(), "parse line")
	})
	b.killChild(syscall.SIGKILL)
	nettest.Until(t, recovery, "the device of another process", func() bool {
		return strings.Count(b.log.String(), "device ready") > 1
	})

	for _, secret := range []string{hexKey, base64.StdEncoding.EncodeToString(key[:])} {
		if strings.Contains(b.log.String(), secret) {
			t.Fatal("the private key is in the log")
		}
	}
}

func TestStateIsPrivate(t *testing.T) {
	n := newNode(t, 1, ipv4)
	n.startWorker()
	n.mustSync(n.spec())
	n.Run(t, func() error {
		for _, file := range []string{filepath.Join(abi.WorkerDir, device+".state"),
			filepath.Join(abi.WireGuardSocketDir, device+".sock")} {
			st, err := os.Stat(file)
			if err != nil {
				return err
			}
			if st.Mode().Perm() != 0o600 {
				t.Errorf("%s has mode %v, want 0600", file, st.Mode())
			}
		}
		return nil
	})
}

func TestBothWorkersKilledAtOnce(t *testing.T) {
	a, b := pair(t, ipv4)
	ab, _ := stream(t, a, b, 4001)
	ba, _ := stream(t, b, a, 4002)
	flows(t, "traffic to b", ab, time.Time{})
	flows(t, "traffic to a", ba, time.Time{})
	pids := []int{a.child(), b.child()}
	killed := time.Now()
	a.killChild(syscall.SIGKILL)
	b.killChild(syscall.SIGKILL)
	nettest.Until(t, recovery, "new processes", func() bool {
		p, q := a.child(), b.child()
		return p != 0 && p != pids[0] && q != 0 && q != pids[1]
	})
	back := time.Now()
	for _, arrivals := range []func() []time.Time{ab, ba} {
		took := flows(t, "traffic after the kill", arrivals, back).Sub(killed)
		t.Logf("traffic after %s", took.Round(time.Millisecond))
		if took > recovery {
			t.Errorf("traffic came back after %s, want at most %s", took, recovery)
		}
	}
}
