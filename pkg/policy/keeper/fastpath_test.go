package keeper

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nfnl"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/policy"
)

// fakeFast is a fast path that records its calls, and whether the plan was in force at each.
type fakeFast struct {
	n     *node
	calls []string
	// talks reports whether the client reaches the server by netfilter.
	talks func() bool
	// opened are the connections that the fast path knows.
	opened []nl.Opened
	fails  error
	// fast are the links that have the fast path since the last call of Move.
	fast map[string]bool
}

func (f *fakeFast) note(what string, links map[string]bool) error {
	var names []string
	for l := range links {
		for name := range f.n.pods {
			if pod.HostLink(name, "eth0") == l {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	if f.talks != nil {
		what += fmt.Sprintf(" (client reaches server: %t)", f.talks())
	}
	f.calls = append(f.calls, fmt.Sprint(what, " ", names))
	return f.fails
}

func (f *fakeFast) Move(links map[string]bool, allows func(nl.Opened) bool,
	apply func() error) error {
	if err := f.track(allows); err != nil {
		return err
	}
	if err := f.note("retain", links); err != nil {
		return err
	}
	if err := apply(); err != nil {
		return err
	}
	f.fast = maps.Clone(links)
	return f.note("allow", links)
}

// track adds the connections that the plan allows to conntrack.
func (f *fakeFast) track(allows func(nl.Opened) bool) error {
	c, err := nfnl.Open()
	if err != nil {
		return err
	}
	allowed := slices.DeleteFunc(slices.Clone(f.opened),
		func(o nl.Opened) bool { return !allows(o) })
	return errors.Join(nl.TrackOpened(c, allowed), c.Close())
}

func (f *fakeFast) Fast() map[string]bool { return f.fast }

func (f *fakeFast) Opened() ([]nl.Opened, error) { return f.opened, nil }

func (f *fakeFast) want(t *testing.T, when string, calls ...string) {
	t.Helper()
	if !slices.Equal(f.calls, calls) {
		t.Errorf("%s: the fast path was asked\n%q, want\n%q", when, f.calls, calls)
	}
	f.calls = nil
}

func newFastNode(t *testing.T) (*node, *fakeFast) {
	t.Helper()
	n := newNode(t)
	f := &fakeFast{n: n}
	n.fast = f
	n.restart()
	n.put("client", nil)
	n.put("server", map[string]string{"app": "server"})
	n.listed()
	f.calls = nil
	return n, f
}

func TestPodLosesTheFastPathBeforeItIsJudged(t *testing.T) {
	n, f := newFastNode(t)
	n.attach("client", 1)
	n.attach("server", 2)
	n.AttachmentsChanged()
	n.step()
	f.want(t, "attached", "retain [client server]", "allow [client server]")

	f.talks = func() bool { return n.talks("client", 2, patience) }
	n.PutPolicy(denyAll)
	n.step()
	f.want(t, "selected", "retain (client reaches server: true) [client]",
		"allow (client reaches server: false) [client]")

	n.DeletePolicy(denyAll.Name)
	n.step()
	f.want(t, "released", "retain (client reaches server: false) [client server]",
		"allow (client reaches server: true) [client server]")

	// The daemon does not know this pod yet.
	f.talks = nil
	n.attach("late", 3)
	n.AttachmentsChanged()
	n.step()
	f.want(t, "unknown", "retain [client server]", "allow [client server]")

	// If the fast path cannot be taken from pods, the plan does not come in force.
	f.fails = errors.New("no")
	n.PutPolicy(denyAll)
	if err := n.Host.Do(n.Keeper.step); err == nil {
		t.Error("a plan is in force although pods keep the fast path")
	}
	n.wantTalk("client", 2, true)
	f.fails, f.calls = nil, nil
	n.step()
	n.wantTalk("client", 2, false)

	// A new daemon does not know which pods have the fast path.
	f.calls = nil
	n.restart()
	n.put("client", nil)
	n.put("server", map[string]string{"app": "server"})
	n.PutPolicy(denyAll)
	n.listed()
	f.want(t, "another daemon", "retain [client]", "allow [client]")
}

func TestShowSaysWhichPodsHaveTheFastPath(t *testing.T) {
	n, f := newFastNode(t)
	wants := func(when string, count int, pods map[string]string) {
		t.Helper()
		if s := n.Status(); s.FastPath == nil || *s.FastPath != count {
			t.Errorf("%s: %v pods have the fast path, want %d", when, s.FastPath, count)
		}
		for name, why := range pods {
			v, err := n.ShowPod(policy.Name{Namespace: "shop", Name: name})
			if err != nil || v.FastPath == nil || v.FastPath.Has != (why == "") ||
				!strings.HasPrefix(v.FastPath.Why, why) {
				t.Errorf("%s: pod %s: %+v, %v, want %q", when, name, v.FastPath, err, why)
			}
		}
	}
	wants("bound", 0, map[string]string{"client": "it is not attached"})
	n.attach("client", 1)
	n.attach("server", 2)
	n.AttachmentsChanged()
	n.step()
	wants("attached", 2, map[string]string{"client": "", "server": ""})

	n.PutPolicy(denyAll)
	n.step()
	wants("selected", 1, map[string]string{"client": "", "server": "policies apply"})
	delete(f.fast, pod.HostLink("client", "eth0"))
	wants("limited", 0, map[string]string{"client": "it is new, its", "server": "policies apply"})
	n.put("late", nil)
	n.attach("late", 3)
	wants("not known yet", 0, map[string]string{"late": "it is not attached"})
	n.AttachmentsChanged()
	n.step()
	wants("known", 2, map[string]string{"late": ""})

	n.PutPod(policy.Pod{Name: policy.Name{Namespace: "shop", Name: "host"}, UID: "uid-host",
		Node: "here", HostNetwork: true})
	host, err := n.ShowPod(policy.Name{Namespace: "shop", Name: "host"})
	if err != nil || host.FastPath != nil {
		t.Errorf("a pod with the node's network: %+v, %v", host.FastPath, err)
	}
	f.fast = nil
	late, err := n.ShowPod(policy.Name{Namespace: "shop", Name: "late"})
	if err != nil || late.FastPath != nil || n.Status().FastPath != nil {
		t.Errorf("a node without the fast path: %+v, %v", late.FastPath, err)
	}
}

// open returns a connection of the client to the server. Conntrack has forgotten it and then saw a
// packet of the server first.
func (n *node) open() (client, server net.Conn) {
	n.t.Helper()
	var listener net.Listener
	n.pods["server"].Run(n.t, func() (err error) {
		listener, err = net.Listen("tcp", "198.18.1.2:90")
		return err
	})
	defer listener.Close()
	n.pods["client"].Run(n.t, func() (err error) {
		client, err = net.DialTimeout("tcp", "198.18.1.2:90", 3*time.Second)
		return err
	})
	server, err := listener.Accept()
	errtest.Must(n.t, err)
	n.t.Cleanup(func() { client.Close(); server.Close() })

	all := func(nl.Connection) bool { return true }
	n.must(func() error {
		c, err := nfnl.Open()
		if err != nil {
			return err
		}
		found, err := nl.FindConnections(c, all)
		if err == nil {
			_, err = found.Delete()
		}
		return errors.Join(err, c.Close())
	})
	return client, server
}

// says reports whether data that one end writes reaches the other.
func says(from, to net.Conn) bool {
	_, err := from.Write([]byte("x"))
	if err == nil {
		_ = to.SetReadDeadline(time.Now().Add(400 * time.Millisecond))
		_, err = to.Read(make([]byte, 1))
	}
	return err == nil
}

// Conntrack takes the server for the client if it saw the server's segment first. The policy lets
// the server open connections.
func TestConnectionOfUnknownOriginIsRevoked(t *testing.T) {
	n, _ := newFastNode(t)
	n.attach("client", 1)
	n.attach("server", 2)
	n.AttachmentsChanged()
	n.step()
	client, server := n.open()
	if !says(server, client) || !says(client, server) {
		t.Fatal("the connection was not taken up")
	}

	n.PutPolicy(denyAll)
	n.step()
	n.must(n.revoker.Once)
	n.must(n.revoker.Close)
	if says(server, client) || says(client, server) {
		t.Error("a connection continues that a policy forbids")
	}
}

// A plan that came in force in a step that failed ends the connections that it forbids, although
// the next step finds nothing to change.
func TestConnectionsAreRevokedAfterAStepThatFailed(t *testing.T) {
	n, _ := newFastNode(t)
	n.attach("client", 1)
	n.attach("server", 2)
	n.AttachmentsChanged()
	n.step()
	client, server := n.open()
	n.must(n.revoker.Once)
	if !says(client, server) {
		t.Fatal("the connection was not taken up")
	}

	n.PutPolicy(denyAll)
	n.Keeper.fast = deadly{allow: true}
	if err := n.Host.Do(n.Keeper.step); err == nil {
		t.Fatal("the step succeeded")
	}
	n.Keeper.fast = deadly{}
	n.step()
	n.must(n.revoker.Once)
	n.must(n.revoker.Close)
	if says(client, server) {
		t.Error("a connection continues that a policy forbids")
	}
}

// A policy that allows a port of TCP allows no datagrams to it.
func TestDatagramsOfTheFastPathAreJudgedByTheirProtocol(t *testing.T) {
	n, _ := newFastNode(t)
	n.attach("server", 2)
	n.AttachmentsChanged()
	p := denyAll
	p.Rules[policy.Ingress] = []policy.Rule{{Ports: []policy.Port{{Proto: policy.TCP, First: 53,
		Last: 53}}}}
	n.PutPolicy(p)
	n.step()
	allows := n.allows(n.shown.Load().plan)
	for _, udp := range []bool{false, true} {
		o := nl.Opened{Client: netip.MustParseAddrPort("192.0.2.9:4000"),
			Server: netip.AddrPortFrom(addrsOf(2)[0], 53), UDP: udp}
		if allows(o) == udp {
			t.Errorf("%+v is allowed: %t", o, allows(o))
		}
	}
}

// Connections of the fast path continue if the policy allows them, and end if it does not.
func TestConnectionsOfTheFastPathAreJudged(t *testing.T) {
	for _, allowed := range []bool{true, false} {
		t.Run(fmt.Sprint("allowed ", allowed), func(t *testing.T) {
			n, f := newFastNode(t)
			n.attach("client", 1)
			n.attach("server", 2)
			n.AttachmentsChanged()
			n.step()
			client, server := n.open()
			f.opened = []nl.Opened{{Client: netip.MustParseAddrPort(client.LocalAddr().String()),
				Server: netip.MustParseAddrPort("198.18.1.2:90")}}

			p := denyAll
			p.Isolates = [2]bool{true, true}
			if allowed {
				p.Rules[policy.Ingress] = []policy.Rule{{Peers: []policy.Peer{{
					Pods: &policy.Selector{}}}}}
			}
			n.PutPolicy(p)
			n.step()
			n.must(n.revoker.Once)
			n.must(n.revoker.Close)
			if says(server, client) != allowed || says(client, server) != allowed {
				t.Errorf("the connection goes on: %t, want %t", !allowed, allowed)
			}
		})
	}
}
