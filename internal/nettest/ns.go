package nettest

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/kubeveil/kubeveil/internal/netns"
	"github.com/kubeveil/kubeveil/internal/nl"
)

// The main goroutine keeps the main thread to itself. Otherwise a goroutine that changes its
// thread's namespaces could run on it, and the main thread does not end with its goroutine:
// /proc/self would show that namespace until the process ends.
func init() { runtime.LockOSThread() }

// NS is a network namespace of one test, with lo up. It lives as long as the test and has no mount
// point, so nothing of it can stay behind.
type NS struct {
	t testing.TB
	f *os.File
}

// NewNS makes a network namespace that disappears when the test ends. It implies NeedRoot.
func NewNS(t testing.TB) *NS {
	t.Helper()
	NeedRoot(t)
	f, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	ns := &NS{t: t, f: f}
	t.Cleanup(func() { f.Close() })
	ns.Run(t, asNew)
	return ns
}

// asNew sets lo up, and what a new namespace would otherwise inherit from the machine (IPv4 alone
// does so: net.core.devconf_inherit_init_net) to the kernel's own defaults.
func asNew() error {
	for _, name := range []string{"ip_forward", "conf/all/rp_filter", "conf/default/rp_filter"} {
		if err := os.WriteFile("/proc/sys/net/ipv4/"+name, []byte("0"), 0o644); err != nil {
			return fmt.Errorf("set net.ipv4.%s: %w", name, err)
		}
	}
	return linkUp("lo")
}

// Path returns a path of the namespace that is valid in every process of this PID namespace as long
// as the test runs: /proc/PID/fd/N.
func (n *NS) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.f.Fd()) }

// Fd returns the open namespace; NS keeps ownership.
func (n *NS) Fd() int { return int(n.f.Fd()) }

// Do runs fn on a thread of its own in the namespace.
func (n *NS) Do(fn func() error) error {
	return netns.DoFd(int(n.f.Fd()), n.Path(), fn)
}

// Run is Do that ends the test on an error. fn may not call t.Fatal: it is on
// another goroutine.
func (n *NS) Run(t testing.TB, fn func() error) {
	t.Helper()
	if err := n.Do(fn); err != nil {
		t.Fatal(err)
	}
}

// Handle opens a netlink socket in the namespace, closed when the test ends.
func (n *NS) Handle() *nl.Handle {
	n.t.Helper()
	var h *nl.Handle
	n.Run(n.t, func() (err error) {
		h, err = nl.Open()
		return err
	})
	n.t.Cleanup(h.Close)
	return h
}

// OnLink calls f with a link of the namespace, and fails the test when f does.
func (n *NS) OnLink(name string, f func(h *nl.Handle, l nl.Link) error) {
	n.t.Helper()
	n.Run(n.t, func() error { return nl.OnLink(name, f) })
}

// Link finds a link of the namespace.
func (n *NS) Link(name string) (l nl.Link) {
	n.t.Helper()
	n.OnLink(name, func(_ *nl.Handle, found nl.Link) error {
		l = found
		return nil
	})
	return l
}

// linkUp sets a link of the calling thread's namespace up.
func linkUp(name string) error {
	return nl.OnLink(name, func(h *nl.Handle, link nl.Link) error {
		if err := h.LinkSetUp(link); err != nil {
			return fmt.Errorf("set link %s up: %w", name, err)
		}
		return nil
	})
}
