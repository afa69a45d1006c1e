package pod

import (
	"errors"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/pod/podtest"
)

// The main thread shows the process's mounts to the leak check: a test that
// leaves it in another mount namespace, as a thread that ends would, must not get it.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

// node is a host with the pins and tables that veild would have made, and no pod.
type node struct {
	*nettest.Host
	Paths
	t *testing.T
	h *nl.Handle
}

func newNode(t *testing.T) *node {
	t.Helper()
	nettest.NeedBPF(t)
	n := &node{Host: nettest.NewHost(t, abi.RunDir), Paths: DefaultPaths(), t: t}
	n.h = n.Handle()
	n.must(func() error { return podtest.Pin(n.BPFDir) })
	n.must(podtest.Guard)
	n.must(func() error { return podtest.Mark(n.ReadyFile) })
	return n
}

func (n *node) must(fn func() error) {
	n.t.Helper()
	n.Run(n.t, fn)
}

var (
	pod4 = netip.MustParseAddr("198.18.1.5")
	pod6 = netip.MustParseAddr("fd42:1::5")
)

// newRecord returns a record of a pod in a namespace of its own.
func newRecord(t *testing.T, container string, addrs ...netip.Addr) (Record, *nettest.NS) {
	t.Helper()
	ns := nettest.NewNS(t)
	return Record{
		Network: abi.NetworkName, ContainerID: container, IfName: "eth0", Netns: ns.Path(),
		HostLink: HostLink(container, "eth0"), Addrs: addrs, MTU: 1420,
	}, ns
}

// attach attaches, and ends the test if that fails.
func (n *node) attach(r Record, ns *nettest.NS) {
	n.t.Helper()
	n.must(func() error {
		var undo Undo
		return n.Attach(r, ns.Fd(), &undo)
	})
}

// Each of these opens a connection of its own, in the calling thread's namespace.

func unsetAddrs(link string) error {
	return withSets(func(s nftSets) error { return s.unsetAddrs(link, nil) })
}

func changeElements(add, remove []element) error {
	return withSets(func(s nftSets) error { return s.change(add, remove) })
}

func readElements() (all []element, err error) {
	err = withSets(func(s nftSets) error {
		all, err = s.elements()
		return err
	})
	return all, err
}

func groupsOf(addrs []netip.Addr) (found []nft.Elements, err error) {
	err = withSets(func(s nftSets) error {
		found, _, err = s.groupsOf(addrs)
		return err
	})
	return found, err
}

// elements returns all elements of the sets.
func (n *node) elements() []element {
	n.t.Helper()
	var all []element
	n.must(func() (err error) {
		all, err = readElements()
		if errors.Is(err, ErrNotFound) {
			err = nil
		}
		return err
	})
	return all
}

// bare reports whether the node has nothing of any pod.
func (n *node) bare() error {
	n.t.Helper()
	var links map[string]bool
	var records []Record
	n.must(func() (err error) {
		if links, err = podLinks(); err != nil {
			return err
		}
		records, err = n.List()
		return err
	})
	if len(links) != 0 || len(records) != 0 || len(n.elements()) != 0 {
		return &leftover{links, records, n.elements()}
	}
	for _, table := range []int{unix.RT_TABLE_MAIN, abi.TablePod} {
		routes, err := n.h.RouteListFiltered(nl.FamilyAll,
			&nl.Route{Table: table, Protocol: abi.RouteProtoPod},
			nl.FilterTable|nl.FilterProtocol)
		if err != nil {
			return err
		}
		if len(routes) != 0 {
			n.t.Errorf("routes left in table %d: %v", table, routes)
		}
	}
	return nil
}
