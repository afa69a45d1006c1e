package pod

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/netns"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/sysctl"
)

// ErrAttached matches the error of Attach if the attachment exists already.
var ErrAttached = fs.ErrExist

// Exists reports whether there is a record file for the host link, even if it cannot be read.
func (p Paths) Exists(hostLink string) (bool, error) {
	return exists("record", p.record(hostLink))
}

// exists reports whether there is a file or a directory at path.
func exists(what, path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for %s: %w", what, err)
	}
	return true, nil
}

// attachment is the state of one call of Attach.
type attachment struct {
	Paths
	Record
	nsFd  int
	undo  *Undo
	host  *nl.Handle
	index int // of the host link, once it exists
	// pod and podIndex are the handle and the link inside the pod, set by setPod.
	pod      *nl.Handle
	podIndex int
}

// Attach connects the pod whose namespace is open as nsFd, according to the record. It adds to undo
// the steps that revert it. The caller must run undo if Attach fails, or if the caller fails later.
// The error matches ErrAttached if a link with one of the record's names exists.
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
	defer func() {
		if a.pod != nil {
			a.pod.Close()
		}
	}()

	for _, step := range a.steps() {
		err := step.do()
		if err == nil && afterStep != nil {
			err = afterStep(step.name)
		}
		if err != nil {
			return fmt.Errorf("attach %s of container %s: %s: %w", r.IfName, r.ContainerID,
				step.name, err)
		}
	}

	return nil
}

// afterStep lets tests make Attach fail after a step. It is nil in programs.
var afterStep func(name string) error

type step struct {
	name string
	do   func() error
}

// steps returns the steps of Attach, in the order that keeps the promises of doc.go.
func (a *attachment) steps() []step {
	return []step{
		{"record", a.writeRecord},
		{"gate", a.stillOpen},
		{"link", a.addLink},
		{"elements", a.writeAddrs},
		{"pod", a.setPod},
		{"host", a.setHost},
		{"settle", a.settle},
	}
}

func (a *attachment) writeRecord() error {
	a.undo.Add(func() error { return a.removeRecord(a.HostLink) })
	return a.write(a.Record)
}

// stillOpen returns an error if the marker that Gate saw does not exist any more. It runs after the
// record was written. A program that takes the node out of service removes the marker and then
// lists records. So either that program finds this record, or stillOpen fails.
func (a *attachment) stillOpen() error {
	if _, err := os.Lstat(a.ReadyFile); err != nil {
		return fmt.Errorf("%w: %w: veild removed its marker meanwhile", ErrClosed, err)
	}
	return nil
}

// addLink makes both ends of the veth with one message, each in its namespace. Both are down.
func (a *attachment) addLink() error {
	attrs := nl.NewLinkAttrs()
	attrs.Name = a.HostLink
	attrs.Group = abi.PodGroup
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
	a.undo.Add(func() error {
		return withSets(func(s nftSets) error { return a.endConnections(s, a.Addrs) })
	})
	a.undo.Add(func() error { return deleteLink(a.HostLink) })
	a.index = veth.Attrs().Index
	if a.index == 0 {
		return fmt.Errorf("%s: %w as soon as made", a.HostLink, ErrNotFound)
	}
	return filterSources(a.HostLink)
}

// filterSources enables the reverse path filter of a pod's link. Without it, the kernel adds the
// sender of every ARP request to the node's neighbour table, which all links share. So a pod that
// forges senders could fill the table. The nft table of pods filters the pod's IP packets,
// including neighbour discovery.
func filterSources(link string) error {
	if err := sysctl.Write(sysctl.RPFilter(link), rpFilterStrict); err != nil {
		return fmt.Errorf("turn the reverse path filter of %s on: %w", link, err)
	}
	return nil
}

// Values of rp_filter. The loose mode, 2, which distributions set, also keeps forged ARP senders
// out.
const rpFilterOff, rpFilterStrict = "0", "1"

// writeAddrs adds the pod's addresses to the nft sets. If policies are enforced, it also adds the
// pod to its group, in the same transaction.
func (a *attachment) writeAddrs() error {
	a.undo.Add(func() error {
		return withSets(func(s nftSets) error { return s.mute(a.HostLink, a.Addrs) })
	})
	judged, err := a.PolicyOpen()
	if err != nil {
		return err
	}
	return withSets(func(s nftSets) error {
		if judged {
			return a.Paths.writeJudged(s, a.Record)
		}
		return unguarded(s.change(elementsOf(a.HostLink, a.Addrs), nil))
	})
}

// setPod configures the pod's end. It opens a.pod inside the pod's namespace. The socket stays in
// that namespace, regardless of the thread that uses it later.
func (a *attachment) setPod() error {
	err := netns.DoFd(a.nsFd, a.Netns, func() (err error) {
		if err := allowIPv6(a.Record); err != nil {
			return err
		}
		a.pod, err = nl.Open()
		return err
	})
	if err != nil {
		return err
	}

	l, err := a.pod.LinkByName(a.IfName)
	if err != nil {
		return fmt.Errorf("find %s: %w", a.IfName, err)
	}
	if err := a.pod.LinkSetUp(l); err != nil {
		return fmt.Errorf("set %s up: %w", a.IfName, err)
	}

	a.podIndex = l.Attrs().Index
	for _, addr := range a.Addrs {
		with := &nl.Addr{IPNet: single(addr)}
		if addr.Is6() {
			// Skip duplicate address detection, because no other host can have the address, and a
			// tentative address cannot be used.
			with.Flags = unix.IFA_F_NODAD
		}
		if err := nl.Err(a.pod.AddrAdd(l, with)); err != nil {
			return fmt.Errorf("add address %s to %s: %w", addr, a.IfName, err)
		}
	}

	return setRoutes(a.pod, podRoutes(a.Record, a.podIndex), podNeighs(a.Record, a.podIndex))
}

// setHost sets the node's end up, which gives both ends a carrier. Then it sets routes and
// neighbours, which the kernel refuses while the link is down.
func (a *attachment) setHost() error {
	if err := a.host.LinkSetUp(linkOf(a.HostLink, a.index)); err != nil {
		return fmt.Errorf("set %s up: %w", a.HostLink, err)
	}
	return setRoutes(a.host, hostRoutes(a.Record, a.index), hostNeighs(a.Record, a.index))
}

// settlePatience bounds the wait in settle. Usually it takes milliseconds. It takes seconds while
// namespaces with many links are removed, because all namespaces share one lock (rtnl_mutex).
const settlePatience = 10 * time.Second

// settle waits until the pod can send and receive, so that the first packet after ADD is not lost.
//   - The pod's end has a carrier since the other end is up. But it drops packets until the
//     kernel's link watch has run. Linux 6.8 and later run it when the link is read.
//   - An IPv6 address becomes local asynchronously, in a work item, even without duplicate address
//     detection (net/ipv6/addrconf.c, addrconf_dad_start).
func (a *attachment) settle() error {
	deadline := time.Now().Add(settlePatience)
	for {
		pending, err := a.pending()
		if err != nil || pending == "" {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s after %s", pending, settlePatience)
		}
		time.Sleep(time.Millisecond)
	}
}

// pending describes what the pod still waits for. It returns an empty string if it can send and
// receive.
func (a *attachment) pending() (string, error) {
	l, err := a.pod.LinkByIndex(a.podIndex)
	if err != nil {
		return "", fmt.Errorf("find %s: %w", a.IfName, err)
	}
	if l.Attrs().OperState != nl.OperUp {
		return a.IfName + " has no carrier", nil
	}
	for _, addr := range a.Addrs {
		if !addr.Is6() {
			continue
		}
		routes, err := a.pod.RouteGet(addr.AsSlice())
		if err != nil || len(routes) != 1 || routes[0].Type != unix.RTN_LOCAL {
			return fmt.Sprintf("address %s is not local", addr), nil
		}
	}
	return "", nil
}

// allowIPv6 enables IPv6 on the pod's end if the pod has an IPv6 address, because the runtime may
// have made a namespace with IPv6 disabled.
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

// linkOf returns a link for calls that use only its name and index.
func linkOf(name string, index int) nl.Link {
	attrs := nl.NewLinkAttrs()
	attrs.Name, attrs.Index = name, index
	return &nl.Veth{LinkAttrs: attrs}
}
