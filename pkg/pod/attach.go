package pod

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/netns"
)

// ErrAttached matches the error of Attach for an attachment that exists already.
var ErrAttached = fs.ErrExist

// Exists is whether there is a record of the attachment, readable or not.
func (p Paths) Exists(hostLink string) (bool, error) {
	_, err := os.Lstat(p.record(hostLink))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// attachment is one Attach at work.
type attachment struct {
	Paths
	Record
	nsFd  int
	index int // of the host link, once it exists
	host  *nl.Handle
	undo  *Undo
}

// Attach connects the pod whose namespace is open as nsFd, as the record says.
// What must be taken back when the caller fails later is put on undo, which is
// the caller's to run, also when Attach itself fails. The error matches
// ErrAttached when a link of the record's names is there already.
func (p Paths) Attach(r Record, nsFd int, undo *Undo) error {
	if err := r.Validate(); err != nil {
		return fmt.Errorf("attach %s of container %s: %w", r.IfName, r.ContainerID, err)
	}
	if err := os.MkdirAll(p.PodDir, 0o700); err != nil {
		return fmt.Errorf("make record directory: %w", err)
	}
	unlock, err := p.lock(r.HostLink)
	if err != nil {
		return err
	}
	defer unlock()
	host, err := nl.Open()
	if err != nil {
		return err
	}
	defer host.Close()
	a := &attachment{Paths: p, Record: r, nsFd: nsFd, host: host, undo: undo}
	for _, step := range a.steps() {
		if err := step.do(); err != nil {
			return fmt.Errorf("attach %s of container %s: %s: %w", r.IfName, r.ContainerID, step.name, err)
		}
		if afterStep != nil {
			if err := afterStep(step.name); err != nil {
				return err
			}
		}
	}
	return nil
}

// afterStep lets tests fail Attach after each step; nil in programs.
var afterStep func(name string) error

type step struct {
	name string
	do   func() error
}

// steps are in the order that keeps the promises of doc.go.
func (a *attachment) steps() []step {
	return []step{
		{"record", a.writeRecord},
		{"link", a.addLink},
		{"program", a.attachProgram},
		{"addresses", a.writeAddrs},
		{"host", a.setHost},
		{"pod", a.setPod},
	}
}

func (a *attachment) writeRecord() error {
	a.undo.Add(func() error { return a.removeRecord(a.HostLink) })
	return a.write(a.Record)
}

// addLink makes both ends by one message, each in its namespace, both down.
func (a *attachment) addLink() error {
	attrs := nl.NewLinkAttrs()
	attrs.Name = a.HostLink
	attrs.Group = config.PodGroup
	attrs.MTU = a.MTU
	attrs.HardwareAddr = a.HostMAC()
	veth := &nl.Veth{
		LinkAttrs: attrs, PeerName: a.IfName, PeerHardwareAddr: a.PodMAC(),
		PeerNamespace: nl.NsFd(a.nsFd), PeerTxQLen: -1,
	}
	if err := nl.Err(a.host.LinkAdd(veth)); err != nil {
		if errors.Is(err, nl.ErrExists) {
			return fmt.Errorf("%s on the node or %s in the pod: %w", a.HostLink, a.IfName, err)
		}
		return err
	}
	a.undo.Add(func() error { return deleteLink(a.HostLink) })
	a.index = veth.Attrs().Index
	if a.index == 0 {
		return fmt.Errorf("%s: %w as soon as made", a.HostLink, ErrNotFound)
	}
	return nil
}

func (a *attachment) attachProgram() error {
	prog, err := a.openProgram()
	if err != nil {
		return err
	}
	defer prog.Close()
	return prog.attach(a.host, a.index)
}

func (a *attachment) writeAddrs() error {
	a.undo.Add(func() error { return a.unsetAddrs(a.index) })
	return a.setAddrs(a.index, a.Addrs)
}

// setHost opens the node's end; what a closed one refused to hold comes after.
func (a *attachment) setHost() error {
	if err := a.host.LinkSetUp(linkOf(a.HostLink, a.index)); err != nil {
		return fmt.Errorf("set %s up: %w", a.HostLink, err)
	}
	return setRoutes(a.host, hostRoutes(a.Record, a.index), hostNeighs(a.Record, a.index))
}

func (a *attachment) setPod() error {
	return netns.DoFd(a.nsFd, a.Netns, func() error { return setPod(a.Record) })
}

// setPod configures the pod's end from inside the pod's namespace.
func setPod(r Record) error {
	h, err := nl.Open()
	if err != nil {
		return err
	}
	defer h.Close()
	l, err := h.LinkByName(r.IfName)
	if err != nil {
		return fmt.Errorf("find %s in the pod: %w", r.IfName, err)
	}
	if err := allowIPv6(r); err != nil {
		return err
	}
	if err := h.LinkSetUp(l); err != nil {
		return fmt.Errorf("set %s in the pod up: %w", r.IfName, err)
	}
	index := l.Attrs().Index
	for _, a := range r.Addrs {
		addr := &nl.Addr{IPNet: single(a)}
		if a.Is6() {
			// Nobody else can have it, and a tentative address cannot be used.
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := nl.Err(h.AddrReplace(l, addr)); err != nil {
			return fmt.Errorf("add address %s to %s in the pod: %w", a, r.IfName, err)
		}
	}
	if err := setRoutes(h, podRoutes(r, index), podNeighs(r, index)); err != nil {
		return fmt.Errorf("in the pod: %w", err)
	}
	return nil
}

// allowIPv6 opens IPv6 on the pod's end where the runtime made a namespace
// without it but IPAM gave an IPv6 address.
func allowIPv6(r Record) error {
	for _, a := range r.Addrs {
		if !a.Is6() {
			continue
		}
		path := filepath.Join("/proc/sys/net/ipv6/conf", r.IfName, "disable_ipv6")
		data, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("address %s: node has no IPv6: %w", a, err)
		}
		if strings.TrimSpace(string(data)) != "0" {
			if err := os.WriteFile(path, []byte("0"), 0o644); err != nil {
				return fmt.Errorf("enable IPv6 on %s in the pod: %w", r.IfName, err)
			}
		}
	}
	return nil
}

func setRoutes(h *nl.Handle, routes []nl.Route, neighs []nl.Neigh) error {
	for _, n := range neighs {
		if err := h.NeighSet(&n); err != nil {
			return fmt.Errorf("set neighbour %s: %w", n.IP, err)
		}
	}
	for _, r := range routes {
		if err := h.RouteReplace(&r); err != nil {
			return fmt.Errorf("set route %s in table %d: %w", r.Dst, r.Table, err)
		}
	}
	return nil
}

// linkOf is a link for calls that look only at its name and index.
func linkOf(name string, index int) nl.Link {
	attrs := nl.NewLinkAttrs()
	attrs.Name, attrs.Index = name, index
	return &nl.Veth{LinkAttrs: attrs}
}
