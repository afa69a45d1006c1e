package keeper

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/pod/podtest"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables"
)

// node is a host with veild's setup for pods, and a Keeper whose steps the test runs.
type node struct {
	*nettest.Host
	*Keeper
	t     *testing.T
	paths pod.Paths
	pods  map[string]*nettest.NS
	// options are the options of the next restart.
	options policy.Options
	// fast is the option of the next restart.
	fast FastPath
	// clock is the Keeper's clock. postponed are the drafts to make if postpones is set; otherwise
	// they are made at once.
	clock     time.Time
	postpones bool
	postponed []func()
}

var prefixes = map[string][]netip.Prefix{
	"here":  {netip.MustParsePrefix("198.18.1.0/24"), netip.MustParsePrefix("fd42:1:1::/64")},
	"there": {netip.MustParsePrefix("198.18.2.0/24")},
}

func newNode(t *testing.T) *node {
	t.Helper()
	nettest.NeedBPF(t)
	n := &node{Host: nettest.NewHost(t, abi.RunDir), t: t, paths: pod.DefaultPaths(),
		pods: map[string]*nettest.NS{}}
	n.must(func() error { return podtest.Pin(n.paths.BPFDir) })
	n.must(podtest.Guard)
	n.must(func() error { return podtest.Mark(n.paths.ReadyFile) })
	n.must(func() error {
		return errors.Join(os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644),
			os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0o644))
	})
	n.restart()
	return n
}

func (n *node) must(fn func() error) {
	n.t.Helper()
	n.Host.Run(n.t, fn)
}

// restart replaces the Keeper by a new one, as a restart of the daemon does.
func (n *node) restart() {
	if n.Keeper != nil {
		n.Keeper.Close()
	}
	n.Keeper = New(PolicyConfig{Node: "here", Paths: n.paths, Log: slog.New(slog.DiscardHandler),
		Policy: n.options, FastPath: n.fast})
	k := n.Keeper
	k.now = func() time.Time { return n.clock }
	k.beside = func(make func()) {
		if n.postpones {
			n.postponed = append(n.postponed, make)
		} else {
			make()
		}
	}
	n.t.Cleanup(func() { k.Close() })
	n.must(n.Begin)
}

// listed passes the end of the first lists to the Keeper.
func (n *node) listed() {
	n.SetPrefixes(prefixes)
	n.Listed()
	n.step()
}

func (n *node) step() {
	n.t.Helper()
	n.must(n.Keeper.step)
}

// put passes a pod that is bound to this node to the Keeper.
func (n *node) put(name string, labels map[string]string) {
	n.PutNamespace(policy.Namespace{Name: "shop"})
	n.PutPod(policy.Pod{Name: policy.Name{Namespace: "shop", Name: name}, UID: "uid-" + name,
		Node: "here", Labels: labels})
}

func addrsOf(i int) []netip.Addr {
	return []netip.Addr{netip.MustParseAddr(fmt.Sprint("198.18.1.", i)),
		netip.MustParseAddr(fmt.Sprint("fd42:1:1::", i))}
}

// attach runs an ADD for a pod of namespace shop.
func (n *node) attach(name string, i int) pod.Record {
	n.t.Helper()
	return n.attachOf("shop", name, i)
}

func (n *node) attachOf(namespace, name string, i int) pod.Record {
	n.t.Helper()
	ns := nettest.NewNS(n.t)
	r := pod.Record{Network: abi.NetworkName, ContainerID: name, IfName: "eth0", Netns: ns.Path(),
		HostLink: pod.HostLink(name, "eth0"), Addrs: addrsOf(i), MTU: 1420,
		Workload: pod.Workload{Namespace: namespace, Name: name, UID: "uid-" + name}}
	n.must(func() error {
		var undo pod.Undo
		return n.paths.Attach(r, ns.Fd(), &undo)
	})
	n.pods[name] = ns
	return r
}

// patience bounds the wait for an answer that must not come. An expected answer may take up to
// expectation, on an emulated or a busy machine.
const patience, expectation = 300 * time.Millisecond, 10 * time.Second

// talks reports whether a connection from one pod to another is answered. The reset of a closed
// port is an answer.
func (n *node) talks(from string, to int, wait time.Duration) bool {
	n.t.Helper()
	talked := 0
	for _, a := range addrsOf(to) {
		err := n.pods[from].Do(func() error {
			c, err := net.DialTimeout("tcp", netip.AddrPortFrom(a, 80).String(), wait)
			if err == nil {
				c.Close()
			}
			return err
		})
		if err == nil || strings.Contains(err.Error(), "refused") {
			talked++
		}
	}
	if talked == 1 {
		n.t.Errorf("%s reaches %v by one family only", from, addrsOf(to))
	}
	return talked == 2
}

func (n *node) wantTalk(from string, to int, want bool) {
	n.t.Helper()
	wait := patience
	if want {
		wait = expectation
	}
	if got := n.talks(from, to, wait); got != want {
		n.t.Errorf("%s reaches pod %d: %t, want %t", from, to, got, want)
	}
}

var denyAll = policy.Policy{Name: policy.Name{Namespace: "shop", Name: "deny"},
	Isolates: [2]bool{true, false}, Subjects: policy.Selector{{Key: "app", Values: []string{"server"}}}}

func TestPodsAreMuteUntilEverythingWasListed(t *testing.T) {
	n := newNode(t)
	n.attach("client", 1)
	n.attach("server", 2)
	n.step()
	n.wantTalk("client", 2, false)

	n.put("client", nil)
	n.put("server", map[string]string{"app": "server"})
	n.SetPrefixes(prefixes)
	n.step()
	n.wantTalk("client", 2, false)

	n.Listed()
	n.step()
	n.wantTalk("client", 2, true)
	if s := n.Status(); s.Members != 2 || s.Pending != 0 || !s.Listed {
		t.Errorf("status %+v", s)
	}
}

// Before it is ready, the node proves that pods' packets pass: it sends from the first address of
// its prefix through a pod's link.
func TestNodeProvesPassageBeforeAnythingWasListed(t *testing.T) {
	n := newNode(t)
	f := policy.Flow{Src: prefixes["here"][0].Addr(), Dst: prefixes["there"][0].Addr(), FromPod: true}
	n.SetPrefixes(prefixes)
	if v := n.empty().Judge(f); v != policy.Allow {
		t.Errorf("before the lists: %s", v)
	}
	n.step()
	nft := nettest.NeedProgram(t, "nft")
	out := n.Exec(t, nft, "list", "set", "inet", abi.NFTPolicyTable, "own4")
	if !strings.Contains(out, "198.18.1.0") {
		t.Errorf("own4: %s", out)
	}
	n.listed()
	if v := n.shown.Load().plan.Judge(f); v != policy.Allow {
		t.Errorf("listed: %s", v)
	}
}

func TestPodIsJudgedFromItsFirstPacket(t *testing.T) {
	n := newNode(t)
	n.PutPolicy(denyAll)
	n.put("client", nil)
	n.put("server", map[string]string{"app": "server"})
	n.put("open", nil)
	n.listed()

	// The daemon does not run from here on.
	n.attach("client", 1)
	n.attach("server", 2)
	n.attach("open", 3)
	n.wantTalk("client", 2, false)
	n.wantTalk("client", 3, true)
	n.wantTalk("server", 3, true)

	// A pod that the daemon does not know yet is mute.
	n.attach("late", 4)
	n.wantTalk("late", 3, false)
	n.AttachmentsChanged()
	n.step()
	if s := n.Status(); s.Pending != 1 {
		t.Errorf("status %+v", s)
	}
	n.put("late", nil)
	n.step()
	n.wantTalk("late", 3, true)
	n.wantTalk("late", 2, false)
}

func TestRestartKeepsWhatIsInForce(t *testing.T) {
	n := newNode(t)
	n.PutPolicy(denyAll)
	n.put("client", nil)
	n.put("server", map[string]string{"app": "server"})
	n.listed()
	n.attach("client", 1)
	n.attach("server", 2)
	n.restart()
	n.step() // nothing is listed
	n.wantTalk("client", 2, false)

	n.PutPolicy(denyAll)
	n.put("client", nil)
	n.put("server", map[string]string{"app": "server"})
	n.SetPrefixes(prefixes)
	n.Listed()
	n.step()
	n.wantTalk("client", 2, false)
	n.DeletePolicy(denyAll.Name)
	n.step()
	n.wantTalk("client", 2, true)
}

// A program that deletes the table opens no connection, whether the daemon runs, is stopped, or
// restarts.
func TestTableThatIsGoneMakesPodsMute(t *testing.T) {
	nft := nettest.NeedProgram(t, "nft")
	n := newNode(t)
	remove := func() {
		t.Helper()
		n.must(func() error {
			return exec.CommandContext(t.Context(), nft, "delete", "table", "inet",
				abi.NFTPolicyTable).Run()
		})
	}
	exists := func() {
		t.Helper()
		n.must(func() error {
			exists, err := nftables.Exists()
			if !exists {
				t.Error("the table is not restored")
			}
			return err
		})
	}

	n.put("client", nil)
	n.put("server", map[string]string{"app": "server"})
	n.listed()
	n.attach("client", 1)
	n.attach("server", 2)
	n.AttachmentsChanged()
	n.step()
	n.wantTalk("client", 2, true) // the control
	remove()
	n.wantTalk("client", 2, false)
	n.TableChanged()
	n.step()
	exists()
	n.wantTalk("client", 2, true)

	remove()
	n.wantTalk("client", 2, false)
	n.restart()
	exists()
	n.wantTalk("client", 2, false)
}

// A kubelet writes any address into the status of its pods.
func TestAddressThatANodeDoesNotOwnIsNotAPeer(t *testing.T) {
	n := newNode(t)
	np := denyAll
	client := policy.Selector{{Key: "app", Values: []string{"client"}}}
	np.Rules[policy.Ingress] = []policy.Rule{{Peers: []policy.Peer{{Pods: &client}}}}
	n.PutPolicy(np)
	n.put("liar", nil)
	n.put("server", map[string]string{"app": "server"})
	n.PutPod(policy.Pod{Name: policy.Name{Namespace: "shop", Name: "theirs"}, Node: "there",
		Labels: map[string]string{"app": "client"}, Addrs: addrsOf(1)})
	n.listed()
	n.attach("liar", 1)
	n.attach("server", 2)
	n.AttachmentsChanged()
	n.step()
	n.wantTalk("liar", 2, false)
	n.SetPrefixes(map[string][]netip.Prefix{"there": {prefixes["here"][0], prefixes["here"][1]}})
	n.DeletePod(policy.Name{Namespace: "shop", Name: "liar"})
	n.step()
	if plan := n.shown.Load().plan; plan.Sets.Len() != 1 {
		t.Errorf("%d sets", plan.Sets.Len())
	} else {
		for _, s := range plan.Sets.All() {
			if len(s.Addrs) != 2 { // the control: with the other node table it is a peer
				t.Errorf("set has %v", s.Addrs)
			}
		}
	}
}

func TestTurningOnCutsNobodyOff(t *testing.T) {
	n := newNode(t)
	n.must(func() error { _, err := TurnOff(n.paths); return err })
	n.attach("client", 1)
	r := n.attach("server", 2)
	n.wantTalk("client", 2, true)

	// The record of an earlier version does not name the pod.
	r.Workload = pod.Workload{}
	n.restart()
	n.step()
	n.wantTalk("client", 2, true)
	n.PutPolicy(denyAll)
	n.put("client", nil)
	n.put("server", map[string]string{"app": "server"})
	n.listed()
	n.wantTalk("client", 2, false)
	n.must(func() error {
		exists, err := nftables.Exists()
		if !exists {
			t.Error("no table")
		}
		return err
	})
	n.must(func() error { _, err := TurnOff(n.paths); return err })
	n.wantTalk("client", 2, true)
}
