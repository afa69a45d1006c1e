package nl_test

import (
	"context"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nl"
)

// The main goroutine keeps the process's first thread, which cannot end: a test
// that unshares must not get it.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

// watched runs WatchLinks in ns until the test ends. It returns the names of the reported links,
// and the reported losses.
func watched(t *testing.T, ns *nettest.NS) (changed <-chan string, lost <-chan error) {
	t.Helper()
	names, errs := make(chan string, 100), make(chan error, 100)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- ns.Do(func() error {
			return nl.WatchLinks(ctx, nl.LinkEvents{
				Changed: func(_ *nl.Handle, l nl.Link) { names <- l.Attrs().Name },
				Lost:    func(err error) { errs <- err }})
		})
	}()
	t.Cleanup(func() {
		cancel()
		errtest.Check(t, <-done)
	})
	return names, errs
}

// sees waits until a link is reported.
func sees(t *testing.T, changed <-chan string, name string) {
	t.Helper()
	for late := time.After(10 * time.Second); ; {
		select {
		case got := <-changed:
			if got == name {
				return
			}
		case <-late:
			t.Fatalf("link %s is not told of", name)
		}
	}
}

func addLink(t *testing.T, ns *nettest.NS, name string) {
	t.Helper()
	ns.Run(t, func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name},
			PeerName: name + "-peer"})
	})
}

func TestWatchLinks(t *testing.T) {
	ns := nettest.NewNS(t)
	addLink(t, ns, "before")
	changed, lost := watched(t, ns)
	sees(t, changed, "before")
	addLink(t, ns, "after")
	sees(t, changed, "after")
	if len(lost) > 0 {
		t.Errorf("lost: %v", <-lost)
	}
}

// Another program, and another watch of this process, request dumps of the existing links. The
// answers do not count as lost notifications.
func TestRequestsOfOthersDoNotCountAsLoss(t *testing.T) {
	ns := nettest.NewNS(t)
	changed, lost := watched(t, ns)
	sees(t, changed, "lo")
	other, otherLost := watched(t, ns)
	sees(t, other, "lo")

	updates, done := make(chan netlink.LinkUpdate, 100), make(chan struct{})
	ns.Run(t, func() error {
		return netlink.LinkSubscribeWithOptions(updates, done,
			netlink.LinkSubscribeOptions{ListExisting: true})
	})
	<-updates
	close(done)
	for range updates { // until it has ended
	}
	addLink(t, ns, "after") // is reported after all earlier changes
	sees(t, changed, "after")
	sees(t, other, "after")
	if len(lost)+len(otherLost) > 0 {
		t.Errorf("nothing was lost, and %d losses are told of", len(lost)+len(otherLost))
	}
}
