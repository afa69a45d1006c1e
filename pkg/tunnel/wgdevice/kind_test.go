package wgdevice_test

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/tunnel"
	"github.com/kubeveil/kubeveil/pkg/tunnel/wgdevice"
)

// kernelKind returns the kind that this kernel supports. It tries to make a link.
func kernelKind(t *testing.T) tunnel.Kind {
	t.Helper()
	kind := tunnel.Kernel
	nettest.NewNS(t).Run(t, func() error {
		h, err := nl.Open()
		if err != nil {
			return err
		}
		defer h.Close()
		attrs := nl.NewLinkAttrs()
		attrs.Name = "probe0"
		if err := h.LinkAdd(&nl.Wireguard{LinkAttrs: attrs}); err == unix.EOPNOTSUPP { //nolint:errorlint // A raw errno.
			kind = tunnel.Userspace
		} else if err != nil {
			return err
		}
		return nil
	})
	return kind
}

// By default a node uses the kernel's WireGuard if it exists, and otherwise the worker's. Either
// carries traffic.
func TestAutoTakesWhatTheKernelHas(t *testing.T) {
	nettest.NeedTUN(t)
	want := kernelKind(t)
	t.Logf("this kernel gives %s", want)
	for name, f := range map[string]family{"ipv4": ipv4, "ipv6": ipv6} {
		t.Run(name, func(t *testing.T) {
			a, b := pairOf(t, f, wgdevice.ModeAuto)
			wire := nettest.NewCapture(t, a.NS, nettest.SnifferOptions{Link: "eth0"})
			arrivals, _ := stream(t, a, b, 4001)
			flows(t, "traffic", arrivals, time.Time{})
			for _, n := range []*testNode{a, b} {
				var st tunnel.LiveState
				n.Run(t, func() (err error) {
					st, err = n.host.Read(t.Context())
					return err
				})
				if len(st.Devices) != 1 || st.Devices[0].Kind != want {
					t.Errorf("devices %+v, want one of kind %s", st.Devices, want)
				}
			}
			if c := a.mustSync(a.spec(b)); !c.Empty() {
				t.Errorf("second sync changed %+v", c)
			}
			onlyTunnelOf(t, wire.All(t), want)
		})
	}
}
