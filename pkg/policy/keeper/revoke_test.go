package keeper

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/policy"
)

func TestPolicyRevokesKnownConnections(t *testing.T) {
	n := newNode(t)
	n.put("client", nil)
	n.put("server", map[string]string{"app": "server"})
	n.listed()
	n.attach("client", 1)
	n.attach("server", 2)
	var listener net.Listener
	n.pods["server"].Run(t, func() (err error) {
		listener, err = net.Listen("tcp", "198.18.1.2:90")
		return err
	})
	defer listener.Close()
	var client, server net.Conn
	n.pods["client"].Run(t, func() (err error) {
		client, err = net.DialTimeout("tcp", "198.18.1.2:90", 3*time.Second)
		return err
	})
	defer client.Close()
	server, err := listener.Accept()
	errtest.Must(t, err)
	defer server.Close()
	exchange := func(from, to net.Conn) error {
		if _, err := from.Write([]byte("x")); err != nil {
			return err
		}
		_ = to.SetReadDeadline(time.Now().Add(400 * time.Millisecond))
		_, err := to.Read(make([]byte, 1))
		return err
	}
	if err := errors.Join(exchange(client, server), exchange(server, client)); err != nil {
		t.Fatalf("before: %v", err)
	}

	n.PutPolicy(denyAll)
	n.step()
	n.must(n.revoker.Once)
	n.must(n.revoker.Close)
	if s := n.Status(); s.Revoked != 1 {
		t.Errorf("revoked %d connections, want 1", s.Revoked)
	}
	// The server sends first, which must not restore the connection.
	if err := exchange(server, client); err == nil {
		t.Error("the server still reaches the client")
	}
	if err := exchange(client, server); err == nil {
		t.Error("the client still reaches the server")
	}
}

// An answer may be on its way when a flow of UDP is revoked. It would open the flow again from the
// server's end, which is a pod or the node itself.
func TestAnswerOnItsWayDoesNotBringARevokedFlowBack(t *testing.T) {
	n := newNode(t)
	n.put("client", map[string]string{"app": "client"})
	n.put("server", nil)
	n.listed()
	n.attach("client", 1)
	n.attach("server", 2)
	listen := func(addr netip.Addr, port uint16) (c net.PacketConn, err error) {
		c, err = net.ListenPacket("udp", netip.AddrPortFrom(addr, port).String())
		if err == nil {
			t.Cleanup(func() { c.Close() })
		}
		return c, err
	}
	inPod := func(name string, addr netip.Addr, port uint16) (c net.PacketConn) {
		n.pods[name].Run(t, func() (err error) { c, err = listen(addr, port); return err })
		return c
	}
	arrives := func(from, to net.PacketConn) bool {
		_, err := from.WriteTo([]byte("x"), to.LocalAddr())
		if errors.Is(err, unix.EPERM) { // The packet of a process of the node was dropped.
			return false
		}
		errtest.Must(t, err)
		_ = to.SetReadDeadline(time.Now().Add(patience))
		_, _, err = to.ReadFrom(make([]byte, 1))
		return err == nil
	}
	// The kernel adds the route to a new IPv6 address a moment after the address.
	passes := func(from, to net.PacketConn) bool {
		for end := time.Now().Add(expectation); time.Now().Before(end); {
			if arrives(from, to) {
				return true
			}
		}
		return false
	}
	type flow struct{ client, server, other net.PacketConn }
	flows := map[string]flow{}
	for i, family := range []string{"IPv4", "IPv6"} {
		client, server := addrsOf(1)[i], addrsOf(2)[i]
		node := []string{"198.18.9.9", "fd42:9::9"}[i]
		var ofNode, otherOfNode net.PacketConn
		n.must(func() (err error) {
			if err = nettest.Command("ip", "addr", "add", node, "dev", "lo", "nodad"); err != nil {
				return err
			}
			var err2 error
			ofNode, err = listen(netip.MustParseAddr(node), 53)
			otherOfNode, err2 = listen(netip.MustParseAddr(node), 54)
			return errors.Join(err, err2)
		})
		flows["to a pod, "+family] = flow{inPod("client", client, 53), inPod("server", server, 53),
			inPod("server", server, 54)}
		flows["to the node, "+family] = flow{inPod("client", client, 55), ofNode, otherOfNode}
	}
	for name, f := range flows {
		if !passes(f.client, f.server) || !passes(f.server, f.client) {
			t.Fatalf("before: the flow %s does not pass", name)
		}
	}

	mute := policy.Policy{Name: policy.Name{Namespace: "shop", Name: "mute"},
		Isolates: [2]bool{false, true},
		Subjects: policy.Selector{{Key: "app", Values: []string{"client"}}}}
	n.PutPolicy(mute)
	n.step()
	n.must(n.revoker.Once)
	for name, f := range flows {
		if arrives(f.server, f.client) {
			t.Errorf("%s: an answer that was on its way arrives", name)
		}
		if arrives(f.client, f.server) {
			t.Errorf("%s: the client reaches the server", name)
		}
		if !passes(f.other, f.client) {
			t.Errorf("%s: the server cannot open a flow", name)
		}
	}

	// Answers to a flow that is allowed again pass at once.
	n.DeletePolicy(mute.Name)
	n.step()
	for name, f := range flows {
		if !passes(f.client, f.server) || !passes(f.server, f.client) {
			t.Errorf("allowed again: the flow %s does not pass", name)
		}
	}
	n.must(n.revoker.Close)
}
