package wgdevice

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/tunnel"
)

// removeWait is the time in which veil-wg must remove a device whose request is gone. After that,
// remove deletes the link itself.
const removeWait = 2 * time.Second

// Remove removes one of our devices, its request, its state and its socket.
func (h *Host) Remove(ctx context.Context, name string) error {
	_, err := h.remove(ctx, name)
	return err
}

// RemoveAll removes all our devices and requests and returns what it removed. It continues after an
// error.
func (h *Host) RemoveAll(ctx context.Context) ([]string, error) {
	names, err := h.owned()
	errs := []error{err}
	var took []string
	for _, name := range names {
		t, err := h.remove(ctx, name)
		took = append(took, t...)
		errs = append(errs, err)
	}
	return took, errors.Join(errs...)
}

// owned returns the names of our devices and of the devices in requests.
func (h *Host) owned() ([]string, error) {
	st, err := h.Read(context.Background())
	var names []string
	for _, d := range st.Devices {
		if d.Ours && d.Kind != tunnel.Foreign {
			names = append(names, d.Name)
		}
	}
	entries, e := os.ReadDir(h.o.WorkerDir)
	if e != nil && !errors.Is(e, fs.ErrNotExist) {
		err = errors.Join(err, fmt.Errorf("list device requests: %w", e))
	}
	for _, entry := range entries {
		name, _, _ := strings.Cut(entry.Name(), ".")
		if tunnel.IsDeviceName(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), err
}

func (h *Host) remove(ctx context.Context, name string) (took []string, err error) {
	netlink, err := nl.Open()
	if err != nil {
		return nil, err
	}
	defer netlink.Close()
	file := h.requestFile(name)
	asked := false
	if err := os.Remove(file); err == nil {
		asked = true
		took = append(took, "request "+file)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return took, fmt.Errorf("remove request: %w", err)
	}

	l, err := ourLink(netlink, name)
	if err != nil {
		return took, err
	}

	if l != nil {
		if asked {
			waitGone(ctx, netlink, name)
		}
		if err := removeLink(netlink, name); err != nil {
			return took, err
		}
		took = append(took, "device "+name)
	}

	return h.removeFiles(name, took)
}

// ourLink returns the link of that name, or nil if there is none or if it is not ours.
func ourLink(netlink *nl.Handle, name string) (nl.Link, error) {
	l, err := netlink.LinkByName(name)
	switch {
	case errors.Is(err, nl.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("find %s: %w", name, err)
	case l.Attrs().Group != abi.TunnelGroup || kindOf(l) == tunnel.Foreign:
		return nil, nil
	}
	return l, nil
}

// waitGone waits until veil-wg has removed the device, at most removeWait. veil-wg must do it
// itself, because it would recreate a device that another program removes.
func waitGone(ctx context.Context, netlink *nl.Handle, name string) {
	ctx, cancel := context.WithTimeout(ctx, removeWait)
	defer cancel()
	tick := time.NewTicker(servedPoll)
	defer tick.Stop()
	for {
		if _, err := netlink.LinkByName(name); errors.Is(err, nl.ErrNotFound) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func removeLink(netlink *nl.Handle, name string) error {
	l, err := ourLink(netlink, name)
	if err != nil || l == nil {
		return err
	}
	if err := nl.Err(netlink.LinkDel(l)); err != nil && !errors.Is(err, nl.ErrNotFound) {
		return fmt.Errorf("remove link %s: %w", name, err)
	}
	return nil
}

// removeFiles removes the files that a dead veil-wg left for the device. Its state file holds the
// private key.
func (h *Host) removeFiles(name string, took []string) ([]string, error) {
	var errs []error
	// A process killed while writing leaves a temporary file.
	files, _ := filepath.Glob(filepath.Join(h.o.WorkerDir, "."+name+".*"))
	files = append(files, filepath.Join(h.o.WorkerDir, name+".state"),
		filepath.Join(abi.WireGuardSocketDir, name+".sock"))
	for _, file := range files {
		err := os.Remove(file)
		if err == nil {
			took = append(took, "file "+file)
		} else if !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove what veil-wg left: %w", err))
		}
	}
	return took, errors.Join(errs...)
}
