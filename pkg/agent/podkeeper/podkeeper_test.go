package podkeeper

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/hostnet/watch"
	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/pod/podtest"
)

// The main thread shows the process's mounts to the leak check: a test that
// leaves it in another mount namespace must not get it.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

// kept is a node with pods and their keeper.
type kept struct {
	*nettest.Host
	*Keeper
	t        *testing.T
	observed []time.Duration
}

func newKept(t *testing.T) *kept {
	t.Helper()
	nettest.NeedBPF(t)
	k := &kept{Host: nettest.NewHost(t, abi.RunDir), t: t}
	p := pod.DefaultPaths()
	k.Keeper = New(p, time.Minute, time.Second, slog.New(slog.DiscardHandler),
		func(d time.Duration) { k.observed = append(k.observed, d) })
	k.must(func() error { return podtest.Pin(p.BPFDir) })
	k.must(podtest.Guard)
	k.must(func() error { return podtest.Mark(p.ReadyFile) })
	return k
}

func (k *kept) must(fn func() error) {
	k.t.Helper()
	k.Host.Run(k.t, fn)
}

// attach attaches a pod whose ADD took a second.
func (k *kept) attach(n byte) pod.Record {
	k.t.Helper()
	ns := nettest.NewNS(k.t)
	r := pod.Record{
		Network: abi.NetworkName, ContainerID: fmt.Sprint("c", n), IfName: "eth0",
		Netns: ns.Path(), MTU: 1420,
		Addrs: []netip.Addr{netip.AddrFrom4([4]byte{198, 18, 1, n})},
	}
	r.HostLink = pod.HostLink(r.ContainerID, r.IfName)
	k.must(func() error {
		var undo pod.Undo
		if err := k.paths.Attach(r, ns.Fd(), &undo); err != nil {
			return err
		}
		return k.paths.NoteTook(r.HostLink, time.Second)
	})
	return r
}

// works performs the keeper's pending work, which the keeper otherwise does on its goroutine.
func (k *kept) works() (again podWork) {
	k.t.Helper()
	work, mtu, began := k.take()
	if !began {
		k.t.Fatal("the keeper has not begun")
	}
	k.must(func() error { again = k.keep(k.t.Context(), work, mtu); return nil })
	return again
}

// hold locks a pod like the plugin does, by the lock file for the first two digits of its host
// link.
func (k *kept) hold(r pod.Record) (held *os.File) {
	k.t.Helper()
	shard := strings.TrimPrefix(r.HostLink, abi.PodLinkPrefix)[:2]
	k.must(func() (err error) {
		if held, err = os.OpenFile(filepath.Join(k.paths.PodDir, ".lock-"+shard), os.O_RDWR,
			0); err != nil {
			return err
		}
		return unix.Flock(int(held.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	})
	return held
}

func TestKeeperBeginsBehindTheGuard(t *testing.T) {
	k := newKept(t)
	k.Changed(watch.All())
	if work, _, began := k.take(); began || work.all {
		t.Error("there is work before the guard is in force")
	}
	k.Begin(0)
	if work, _, began := k.take(); !began || !work.all {
		t.Error("what came before is not done when the guard is in force")
	}
}

func TestKeeperLooksAtThePodsThatAreNamed(t *testing.T) {
	k := newKept(t)
	one, other := k.attach(1), k.attach(2)
	k.Begin(1420)
	k.works()
	if n := k.Seen().Count; n != 2 || len(k.observed) != 0 {
		t.Errorf("%d pods, observed %v; want 2, and what was there before observed by the "+
			"last veild", n, k.observed)
	}

	for _, r := range []pod.Record{one, other} {
		k.Exec(k.t, "ip", "link", "set", r.HostLink, "down")
	}

	k.Changed(watch.Change{Pods: []string{one.HostLink, "vpod0123456789a"}})
	if again := k.works(); again.all || len(again.links) > 0 {
		t.Errorf("%+v is tried again; a pod without a record is on its way out", again)
	}

	up := func(r pod.Record) bool {
		return strings.Contains(k.Exec(k.t, "ip", "-o", "link", "show", r.HostLink), ",UP")
	}
	if !up(one) || up(other) {
		t.Errorf("up are %t and %t, want only the one that was named", up(one), up(other))
	}

	k.Changed(watch.Change{AllPods: true})
	k.works()
	if !up(other) {
		t.Error("the sweep leaves a pod down")
	}
	if p := k.Seen().Problems; len(p) > 0 {
		t.Errorf("problems %q", p)
	}
}

func TestKeeperObservesNewPodsAndGivesThemTheMTU(t *testing.T) {
	k := newKept(t)
	k.Begin(1420)
	k.works()
	k.attach(1)
	k.Changed(watch.Change{PodLinks: true})
	k.works()
	k.Changed(watch.Change{PodLinks: true})
	k.works()
	if n := k.Seen().Count; n != 1 || len(k.observed) != 1 {
		t.Errorf("%d pods, observed %v, want one and one", n, k.observed)
	}
	k.Begin(1380)
	k.works()
	k.must(func() error {
		records, err := k.paths.List()
		if err == nil && records[0].MTU != 1380 {
			err = fmt.Errorf("the pod's MTU is %d, want 1380", records[0].MTU)
		}
		return err
	})
}

func TestKeeperTriesABusyPodAgainAndShowsIt(t *testing.T) {
	k := newKept(t)
	r := k.attach(1)
	k.Begin(1420)
	k.works()
	k.Exec(k.t, "ip", "link", "set", r.HostLink, "down")
	held := k.hold(r)
	k.Changed(watch.Change{Pods: []string{r.HostLink}})
	again := k.works()
	if !again.links[r.HostLink] || again.all {
		t.Errorf("tried again is %+v, want the busy pod", again)
	}
	if p := k.Seen().Problems; len(p) != 1 || !strings.Contains(p[0], pod.ErrBusy.Error()) {
		t.Errorf("problems %q, want that it is busy", p)
	}
	held.Close()
	k.want(again)
	if again = k.works(); len(again.links) > 0 || len(k.Seen().Problems) > 0 {
		t.Errorf("afterwards %+v is tried again, problems %q", again, k.Seen().Problems)
	}
}
