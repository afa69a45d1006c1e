package wgdevice

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/tunnel"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// Mode selects the kind of new devices. An existing device is kept.
type Mode string

// Modes, as in config.Tunnel.
const (
	ModeAuto      Mode = "auto"
	ModeKernel    Mode = "kernel"
	ModeUserspace Mode = "userspace"
)

// Errors that callers distinguish.
var (
	// ErrNotSupported means that the kernel has no WireGuard.
	ErrNotSupported = errors.New("the kernel has no WireGuard")
	// ErrNoWorker means that veil-wg does not serve a device.
	ErrNoWorker = errors.New("veil-wg is not running")
	// ErrPortInUse means that another socket has the UDP port of a device.
	ErrPortInUse = errors.New("the UDP port is in use")
)

// HostConfig holds the settings of a Host.
type HostConfig struct {
	Mode Mode
	// WorkerDir is the folder of veil-wg's requests. An empty string means abi.WorkerDir.
	WorkerDir string
	// WorkerWait bounds the wait for veil-wg. 0 means 5 s.
	WorkerWait time.Duration
	Log        *slog.Logger
}

// Host is the tunnel.System of this node. It works in the network namespace of the calling thread.
type Host struct {
	o HostConfig

	mu sync.Mutex
	// followed holds the last readings of devices of veil-wg, by name.
	followed map[string]*followed
}

// NewHost returns a Host. It returns an error if Mode is unknown.
func NewHost(o HostConfig) (*Host, error) {
	switch o.Mode {
	case ModeAuto, ModeKernel, ModeUserspace:
	default:
		return nil, fmt.Errorf("tunnel mode %q: want %s, %s or %s", o.Mode, ModeAuto, ModeKernel,
			ModeUserspace)
	}
	o.WorkerDir = cmp.Or(o.WorkerDir, abi.WorkerDir)
	o.WorkerWait = cmp.Or(o.WorkerWait, 5*time.Second)
	return &Host{o: o, followed: map[string]*followed{}}, nil
}

func (h *Host) requestFile(name string) string { return filepath.Join(h.o.WorkerDir, name+".json") }

// Read reads all links with our names.
func (h *Host) Read(ctx context.Context) (tunnel.LiveState, error) {
	netlink, err := nl.Open()
	if err != nil {
		return tunnel.LiveState{}, err
	}
	defer netlink.Close()
	links, err := netlink.LinkList()
	if err != nil {
		return tunnel.LiveState{}, fmt.Errorf("list links: %w", err)
	}
	var st tunnel.LiveState
	for _, l := range links {
		if tunnel.IsDeviceName(l.Attrs().Name) {
			d, err := h.readDevice(l)
			if err != nil {
				return tunnel.LiveState{}, err
			}
			st.Devices = append(st.Devices, d)
		}
	}
	slices.SortFunc(st.Devices, func(a, b tunnel.DeviceState) int {
		return strings.Compare(a.Name, b.Name)
	})
	return st, nil
}

func (h *Host) readDevice(l nl.Link) (tunnel.DeviceState, error) {
	a := l.Attrs()
	st := tunnel.DeviceState{
		Name: a.Name, Kind: kindOf(l), MTU: a.MTU,
		Ours: a.Group == abi.TunnelGroup, Up: a.RawFlags&unix.IFF_UP != 0,
	}
	switch st.Kind {
	case tunnel.Foreign:
		return st, nil
	case tunnel.Kernel:
		err := readWhole(&st)
		return st, err
	}
	// Without its request, veil-wg would remove the device at its next start.
	if _, err := os.Stat(h.requestFile(a.Name)); err != nil {
		return st, nil
	}
	return h.readUserspace(st)
}

// readUserspace adds to st what veil-wg reports about the device.
func (h *Host) readUserspace(st tunnel.DeviceState) (tunnel.DeviceState, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f, socket := h.followed[st.Name], socketOf(st.Name)
	if f == nil {
		f = &followed{}
		h.followed[st.Name] = f
	}
	if !f.update(socket, &st) {
		revision := f.begin(socket)
		if err := standsStill(st.Name); err != nil {
			return st, err
		}
		if err := readWhole(&st); err != nil || !st.Served {
			return st, err
		}
		f.keep(st, revision)
	}

	st.Drops = readDrops(socket)
	var singly map[wgkey.Public]bool
	st.Offloads, singly = readOffloads(socket)
	for i := range st.Peers {
		st.Peers[i].Singly = singly[st.Peers[i].PublicKey]
	}
	return st, nil
}

// readWhole adds to st what the device has. Served stays false if nothing serves the device.
func readWhole(st *tunnel.DeviceState) error {
	c, err := wgctrl.New()
	if err != nil {
		return fmt.Errorf("open wireguard control: %w", err)
	}
	defer c.Close()
	d, err := c.Device(st.Name)
	if errors.Is(err, fs.ErrNotExist) || unserved(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read device %s: %w", st.Name, err)
	}

	st.Served = true
	st.PublicKey = publicKey(d)
	d.PrivateKey = wgtypes.Key{}
	st.ListenPort, st.Mark = d.ListenPort, uint32(d.FirewallMark)
	st.Peers = make([]tunnel.PeerState, 0, len(d.Peers))

	for _, p := range d.Peers {
		st.Peers = append(st.Peers, peerState(p))
	}
	return nil
}

// publicKey returns the public key of a device, or zero if the device has no private key. For such
// a device, wgctrl returns the public key of 32 zero bytes.
func publicKey(d *wgtypes.Device) wgkey.Public {
	if d.PrivateKey == (wgtypes.Key{}) {
		return wgkey.Public{}
	}
	return wgkey.Public(d.PublicKey)
}

// unserved reports whether a configuration socket has no listener, or its process died while
// answering.
func unserved(err error) bool {
	return errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ECONNRESET) ||
		errors.Is(err, unix.EPIPE)
}

func kindOf(l nl.Link) tunnel.Kind {
	switch l.Type() {
	case "wireguard":
		return tunnel.Kernel
	case "tuntap":
		return tunnel.Userspace
	}
	return tunnel.Foreign
}

func peerState(p wgtypes.Peer) tunnel.PeerState {
	st := tunnel.PeerState{
		PublicKey: wgkey.Public(p.PublicKey), Keepalive: p.PersistentKeepaliveInterval,
		HasPreshared: p.PresharedKey != wgtypes.Key{}, LastHandshake: p.LastHandshakeTime,
		Received: p.ReceiveBytes, Sent: p.TransmitBytes,
	}
	if p.Endpoint != nil {
		e := p.Endpoint.AddrPort()
		st.Endpoint = netip.AddrPortFrom(e.Addr().Unmap(), e.Port())
	}
	for _, ip := range p.AllowedIPs {
		a, _ := netip.AddrFromSlice(ip.IP)
		ones, _ := ip.Mask.Size()
		st.AllowedIPs = append(st.AllowedIPs, netip.PrefixFrom(a.Unmap(), ones))
	}
	slices.SortFunc(st.AllowedIPs, netip.Prefix.Compare)
	return st
}

// Configure applies c in one call of wgctrl, which splits a configuration that exceeds a netlink
// message.
func (h *Host) Configure(ctx context.Context, c tunnel.DeviceChange) error {
	if err := standsStill(c.Name); err != nil {
		return err
	}
	client, err := wgctrl.New()
	if err != nil {
		return fmt.Errorf("open wireguard control: %w", err)
	}
	defer client.Close()
	err = client.ConfigureDevice(c.Name, deviceConfig(c))
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EADDRINUSE),
		strings.Contains(err.Error(), fmt.Sprintf("errno=-%d", unix.EADDRINUSE)):
		// For a userspace device, wgctrl has the error number only in the text.
		port := 0
		if c.ListenPort != nil {
			port = *c.ListenPort
		}
		return fmt.Errorf("%w: %d: another program has it; end that program or choose another "+
			"tunnel port", ErrPortInUse, port)
	case errors.Is(err, fs.ErrNotExist), unserved(err):
		return fmt.Errorf("%w: %w", ErrNoWorker, err)
	}
	return err
}

func deviceConfig(c tunnel.DeviceChange) wgtypes.Config {
	cfg := wgtypes.Config{ListenPort: c.ListenPort}
	if c.PrivateKey != nil {
		k := wgtypes.Key(c.PrivateKey.Bytes())
		cfg.PrivateKey = &k
	}
	if c.Mark != nil {
		mark := int(*c.Mark)
		cfg.FirewallMark = &mark
	}
	for _, p := range c.Peers {
		cfg.Peers = append(cfg.Peers, peerConfig(p))
	}
	return cfg
}

func peerConfig(p tunnel.PeerChange) wgtypes.PeerConfig {
	cfg := wgtypes.PeerConfig{
		PublicKey: wgtypes.Key(p.PublicKey), Remove: p.Remove,
		ReplaceAllowedIPs: p.ReplaceAllowedIPs, PersistentKeepaliveInterval: p.Keepalive,
	}
	if p.Endpoint != nil {
		cfg.Endpoint = net.UDPAddrFromAddrPort(*p.Endpoint)
	}
	if p.ClearPreshared {
		cfg.PresharedKey = &wgtypes.Key{}
	}
	for _, ip := range p.AllowedIPs {
		cfg.AllowedIPs = append(cfg.AllowedIPs, *nl.IPNet(ip))
	}
	return cfg
}
