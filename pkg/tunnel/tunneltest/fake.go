// Package tunneltest has a fake beside the seam of pkg/tunnel: it holds devices
// in memory and treats configurations as WireGuard does. It is imported by tests only.
package tunneltest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/kubeveil/kubeveil/pkg/tunnel"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// Fake is a tunnel.System without a kernel. The zero value has no devices.
// It is safe for concurrent use.
type Fake struct {
	// Kind is the kind of new devices. An empty string means tunnel.Userspace.
	Kind tunnel.Kind

	mu      sync.Mutex
	devices []tunnel.DeviceState
	fail    map[string]error
	calls   []string
	reads   int
	// held, if not nil, keeps Read from returning its result until it is closed.
	held chan struct{}
}

// Hold makes later calls of Read read the devices, but return only after release is called.
func (f *Fake) Hold() (release func()) {
	held := make(chan struct{})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held = held
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.held = nil
		close(held)
	}
}

// Reads returns how often the devices were read.
func (f *Fake) Reads() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reads
}

// Fail makes every later call of that name ("read", "create", "configure", "singly", "remove")
// return err. If err is nil, calls succeed again.
func (f *Fake) Fail(call string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail == nil {
		f.fail = map[string]error{}
	}
	f.fail[call] = err
}

// Calls returns the successful calls other than Read, such as "configure veil0 2". The number is
// the number of changed peers.
func (f *Fake) Calls() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// Edit calls edit with the device of that name, as if another program changed it. It does nothing
// if there is no such device.
func (f *Fake) Edit(name string, edit func(*tunnel.DeviceState)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if i := f.index(name); i >= 0 {
		edit(&f.devices[i])
	}
}

func (f *Fake) index(name string) int {
	return slices.IndexFunc(f.devices, func(d tunnel.DeviceState) bool { return d.Name == name })
}

// Read returns a copy of the devices.
func (f *Fake) Read(context.Context) (tunnel.LiveState, error) {
	st, held, err := f.read()
	if held != nil {
		<-held
	}
	return st, err
}

func (f *Fake) read() (st tunnel.LiveState, held chan struct{}, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads++
	if err := f.fail["read"]; err != nil {
		return tunnel.LiveState{}, nil, err
	}
	for _, d := range f.devices {
		d.Peers = slices.Clone(d.Peers)
		for i := range d.Peers {
			d.Peers[i].AllowedIPs = slices.Clone(d.Peers[i].AllowedIPs)
		}
		st.Devices = append(st.Devices, d)
	}
	slices.SortFunc(st.Devices, func(a, b tunnel.DeviceState) int {
		return strings.Compare(a.Name, b.Name)
	})
	return st, f.held, nil
}

// Create makes a device. If it exists, it becomes served.
func (f *Fake) Create(_ context.Context, d tunnel.Device) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fail["create"]; err != nil {
		return err
	}
	f.calls = append(f.calls, "create "+d.Name)
	i := f.index(d.Name)
	if i < 0 {
		kind := f.Kind
		if kind == "" {
			kind = tunnel.Userspace
		}
		f.devices = append(f.devices, tunnel.DeviceState{Name: d.Name, Kind: kind, MTU: d.MTU})
		i = len(f.devices) - 1
	}
	f.devices[i].Served, f.devices[i].Ours, f.devices[i].Up = true, true, true
	return nil
}

// Configure applies a change as WireGuard does: an allowed IP that is given to a
// peer is taken from any other.
func (f *Fake) Configure(_ context.Context, c tunnel.DeviceChange) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fail["configure"]; err != nil {
		return err
	}
	i := f.index(c.Name)
	if i < 0 || !f.devices[i].Served {
		return fmt.Errorf("configure %s: no such device", c.Name)
	}
	f.calls = append(f.calls, fmt.Sprintf("configure %s %d", c.Name, len(c.Peers)))
	d := &f.devices[i]
	if c.PrivateKey != nil {
		d.PublicKey = c.PrivateKey.Public()
	}
	if c.ListenPort != nil {
		d.ListenPort = *c.ListenPort
	}
	if c.Mark != nil {
		d.Mark = *c.Mark
	}
	for _, p := range c.Peers {
		configurePeer(d, p)
	}
	return nil
}

func configurePeer(d *tunnel.DeviceState, c tunnel.PeerChange) {
	same := func(p tunnel.PeerState) bool { return p.PublicKey == c.PublicKey }
	if c.Remove {
		d.Peers = slices.DeleteFunc(d.Peers, same)
		return
	}

	i := slices.IndexFunc(d.Peers, same)
	if i < 0 {
		d.Peers = append(d.Peers, tunnel.PeerState{PublicKey: c.PublicKey})
		i = len(d.Peers) - 1
	}

	p := &d.Peers[i]
	if c.Endpoint != nil {
		p.Endpoint = *c.Endpoint
	}
	if c.Keepalive != nil {
		p.Keepalive = *c.Keepalive
	}
	if c.ClearPreshared {
		p.HasPreshared = false
	}
	if c.ReplaceAllowedIPs {
		p.AllowedIPs = nil
	}

	for _, ip := range c.AllowedIPs {
		for j := range d.Peers {
			if at := slices.Index(d.Peers[j].AllowedIPs, ip); at >= 0 {
				d.Peers[j].AllowedIPs = slices.Delete(d.Peers[j].AllowedIPs, at, at+1)
			}
		}
		p.AllowedIPs = append(p.AllowedIPs, ip)
	}
}

// SendSingly marks a peer.
func (f *Fake) SendSingly(_ context.Context, device string, peer wgkey.Public) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fail["singly"]; err != nil {
		return err
	}
	f.calls = append(f.calls, "singly "+device)
	if i := f.index(device); i >= 0 {
		for j := range f.devices[i].Peers {
			p := &f.devices[i].Peers[j]
			p.Singly = p.Singly || p.PublicKey == peer
		}
	}
	return nil
}

// Remove removes a device.
func (f *Fake) Remove(_ context.Context, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fail["remove"]; err != nil {
		return err
	}
	f.calls = append(f.calls, "remove "+name)
	f.devices = slices.DeleteFunc(f.devices,
		func(d tunnel.DeviceState) bool { return d.Name == name })
	return nil
}
