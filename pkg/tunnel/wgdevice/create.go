package wgdevice

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"

	"github.com/kubeveil/kubeveil/internal/atomicfile"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/tunnel"
)

// Create makes a device of the kind that Mode selects, or adopts an existing one of any kind.
func (h *Host) Create(ctx context.Context, d tunnel.Device) error {
	netlink, err := nl.Open()
	if err != nil {
		return err
	}
	defer netlink.Close()

	l, err := netlink.LinkByName(d.Name)
	switch {
	case errors.Is(err, nl.ErrNotFound):
		return h.create(ctx, netlink, d)
	case err != nil:
		return err
	}

	switch kindOf(l) {
	case tunnel.Kernel:
		if h.o.Mode == ModeUserspace {
			h.o.Log.Info("using the existing device, although it has another kind", "device",
				d.Name, "kind", tunnel.Kernel)
		}
		return adoptKernel(netlink, l)
	case tunnel.Userspace:
		if h.o.Mode == ModeKernel {
			h.o.Log.Info("using the existing device, although it has another kind", "device",
				d.Name, "kind", tunnel.Userspace)
		}
		if err := setGroup(netlink, l); err != nil {
			return err
		}
		return h.request(ctx, d)
	}

	return fmt.Errorf("a link of that name exists and is of type %s: remove or rename it", l.Type())
}

func (h *Host) create(ctx context.Context, netlink *nl.Handle, d tunnel.Device) error {
	if h.o.Mode != ModeUserspace {
		err := createKernel(netlink, d)
		if err == nil {
			h.o.Log.Info("tunnel device made", "device", d.Name, "kind", tunnel.Kernel)
		}
		if !errors.Is(err, ErrNotSupported) || h.o.Mode == ModeKernel {
			return err
		}
	}
	if err := h.request(ctx, d); err != nil {
		return err
	}
	h.o.Log.Info("tunnel device made", "device", d.Name, "kind", tunnel.Userspace)
	return nil
}

// createKernel makes a device in the group of tunnels and sets it up. The kernel reports a port
// that is in use only for a device that is up.
func createKernel(netlink *nl.Handle, d tunnel.Device) error {
	attrs := nl.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.Group, attrs.TxQLen = d.Name, d.MTU, abi.TunnelGroup,
		abi.TunnelQueueLen
	err := netlink.LinkAdd(&nl.Wireguard{LinkAttrs: attrs})
	if errors.Is(err, unix.EOPNOTSUPP) {
		return ErrNotSupported
	}
	if err != nil {
		return fmt.Errorf("add link: %w", nl.Err(err))
	}
	l, err := netlink.LinkByName(d.Name)
	if err != nil {
		return err
	}
	return adoptKernel(netlink, l)
}

func adoptKernel(netlink *nl.Handle, l nl.Link) error {
	if err := setGroup(netlink, l); err != nil {
		return err
	}
	if l.Attrs().RawFlags&unix.IFF_UP != 0 {
		return nil
	}
	if err := netlink.LinkSetUp(l); err != nil {
		if errors.Is(err, unix.EADDRINUSE) {
			return fmt.Errorf("set up: %w", ErrPortInUse)
		}
		return fmt.Errorf("set up: %w", err)
	}
	return nil
}

func setGroup(netlink *nl.Handle, l nl.Link) error {
	if l.Attrs().Group == abi.TunnelGroup {
		return nil
	}
	if err := netlink.LinkSetGroup(l, int(abi.TunnelGroup)); err != nil {
		return fmt.Errorf("set group: %w", err)
	}
	return nil
}

// workerRequest is the content of a request file for veil-wg. Package worker parses it.
type workerRequest struct {
	Device string `json:"device"`
	MTU    int    `json:"mtu"`
}

// servedPoll is the interval at which request tries to reach a device and waitGone looks for it.
const servedPoll = 5 * time.Millisecond

// request writes the request for a device and waits until veil-wg serves the device, at most
// WorkerWait.
func (h *Host) request(ctx context.Context, d tunnel.Device) error {
	if err := h.writeRequest(d); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, h.o.WorkerWait)
	defer cancel()
	tick := time.NewTicker(servedPoll)
	defer tick.Stop()
	for {
		err := served(d.Name)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %s/%s.sock was not served within %s (%w): start veil-wg; if it "+
				"runs, its log says more",
				ErrNoWorker, abi.WireGuardSocketDir, d.Name, h.o.WorkerWait, err)
		case <-tick.C:
		}
	}
}

func served(name string) error {
	if err := standsStill(name); err != nil {
		return err
	}
	c, err := wgctrl.New()
	if err != nil {
		return fmt.Errorf("open wireguard control: %w", err)
	}
	defer c.Close()
	_, err = c.Device(name)
	return err
}

func (h *Host) writeRequest(d tunnel.Device) error {
	data, err := json.Marshal(workerRequest{d.Name, d.MTU})
	if err != nil {
		return err
	}
	file := h.requestFile(d.Name)
	if old, err := os.ReadFile(file); err == nil && bytes.Equal(old, data) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return fmt.Errorf("ask veil-wg: %w", err)
	}
	if err := atomicfile.Write(file, data, 0o600); err != nil {
		return fmt.Errorf("ask veil-wg: %w", err)
	}
	return nil
}
