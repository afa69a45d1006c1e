package nettest

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/netns"
	"github.com/kubeveil/kubeveil/internal/nl"
)

// init locks the main goroutine to the main thread. Otherwise another goroutine could run on the
// main thread and change its namespaces. The main thread does not end with such a goroutine, so
// /proc/self would show that namespace until the process ends.
func init() { runtime.LockOSThread() }

// NS is a network namespace of one test, with lo up. It disappears at the end of the test. It has
// no mount point that could stay behind.
type NS struct {
	t testing.TB
	f *os.File
}

// NewNS makes a network namespace that disappears when the test ends. It implies NeedRoot.
func NewNS(t testing.TB) *NS {
	t.Helper()
	NeedRoot(t)
	f, err := netns.New()
	errtest.Must(t, err)
	ns := &NS{t: t, f: f}
	t.Cleanup(func() { f.Close() })
	ns.Run(t, asNew)
	return ns
}

// asNew sets lo up, and sets settings that the new namespace inherited from the machine to the
// kernel's defaults. Only IPv4 settings are inherited (net.core.devconf_inherit_init_net).
func asNew() error {
	for _, name := range []string{"ip_forward", "conf/all/rp_filter", "conf/default/rp_filter"} {
		if err := os.WriteFile("/proc/sys/net/ipv4/"+name, []byte("0"), 0o644); err != nil {
			return fmt.Errorf("set net.ipv4.%s: %w", name, err)
		}
	}
	return linkUp("lo")
}

// Path returns a path of the namespace, /proc/PID/fd/N. It is valid in every process of this PID
// namespace until the test ends.
func (n *NS) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.f.Fd()) }

// Fd returns a file descriptor of the namespace. The caller must not close it.
func (n *NS) Fd() int { return int(n.f.Fd()) }

// Do runs fn on a separate thread in the namespace.
func (n *NS) Do(fn func() error) error {
	return netns.DoFd(int(n.f.Fd()), n.Path(), fn)
}

// Run is like Do, but an error ends the test. fn must not call t.Fatal, because it runs on another
// goroutine.
func (n *NS) Run(t testing.TB, fn func() error) {
	t.Helper()
	errtest.Must(t, n.Do(fn))
}

// Handle opens a netlink socket in the namespace. The socket is closed when the test ends.
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

// OnLink calls f with the link of that name in the namespace. An error ends the test.
func (n *NS) OnLink(name string, f func(h *nl.Handle, l nl.Link) error) {
	n.t.Helper()
	n.Run(n.t, func() error { return nl.OnLink(name, f) })
}

// Link returns the link of that name in the namespace. If there is none, the test ends.
func (n *NS) Link(name string) (l nl.Link) {
	n.t.Helper()
	n.OnLink(name, func(_ *nl.Handle, found nl.Link) error {
		l = found
		return nil
	})
	return l
}

// linkUp sets up a link in the calling thread's namespace.
func linkUp(name string) error {
	return nl.OnLink(name, func(h *nl.Handle, link nl.Link) error {
		if err := h.LinkSetUp(link); err != nil {
			return fmt.Errorf("set link %s up: %w", name, err)
		}
		return nil
	})
}
