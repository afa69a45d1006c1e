package fastpath

import (
	"encoding/binary"
	"fmt"
	"log/slog"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/e2e/bench/bpffs"
	"github.com/kubeveil/kubeveil/e2e/bench/policy/world"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/guard"
	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/service"
	services "github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
	"github.com/kubeveil/kubeveil/pkg/service/link"
)

// FastPath holds the links of a node's pods, and the maps of their programs.
type FastPath struct {
	*link.Links
	table *services.Table
	// index holds the ifindex of each pod's link, by the number of the pod.
	index []uint32
}

// Open makes links with the programs of host routing for the first count pods of the node, in the
// calling thread's namespace. It adds the cleanup to undo, also before it returns an error.
func Open(count int, undo *pod.Undo) (*FastPath, error) {
	f := &FastPath{}
	pods, err := world.NewSpace()
	if err != nil {
		return nil, err
	}
	undo.Add(pods.Close)
	for i := range count {
		name := world.RecordOf(world.PodOf(0, i, 0), i).HostLink
		l := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, Group: abi.PodGroup},
			PeerName: fmt.Sprintf("pod%d", i), PeerNamespace: netlink.NsFd(pods.Fd())}
		if err := netlink.LinkAdd(l); err != nil {
			return nil, fmt.Errorf("add link %s: %w", name, err)
		}
		made, err := netlink.LinkByName(name)
		if err != nil {
			return nil, fmt.Errorf("read link %s: %w", name, err)
		}
		f.index = append(f.index, uint32(made.Attrs().Index))
	}

	pins, err := bpffs.New()
	if err != nil {
		return nil, err
	}
	undo.Add(pins.Close)
	log := slog.New(slog.DiscardHandler)
	g, err := guard.Open(pins.Dir(world.Here), log) // programs at links use its maps
	if err != nil {
		return nil, err
	}
	undo.Add(g.Close)
	f.table, err = services.Open(services.Config{Dir: pins.Dir(world.Here), Log: log, Links: true,
		Limits: service.Limits{Frontends: 1 << 10, BackendSlots: 1 << 12, SourceRanges: 1 << 10}})
	if err != nil {
		return nil, err
	}
	undo.Add(f.table.Close)

	f.Links = link.New(f.table, link.Options{HostRouting: true, Log: log})
	undo.Add(f.Links.CloseConntrack)
	f.Confine()
	_, err = f.AttachLinks()
	return f, err
}

// openedKey is struct flow_key, and openedLinks is struct opened, of bpf/lib/service/opened.h.
type (
	openedKey struct {
		Src, Dst     [16]byte
		SPort, DPort [2]byte
		Proto, Hook  uint8
		_            [2]byte
	}
	openedLinks struct{ Client, Backend uint32 }
)

// Add adds count connections to the map of the fast path, from the node's pods to its pods of
// team-0. portOf returns the port of the server of a connection.
func (f *FastPath) Add(count int, portOf func(k int) uint16) error {
	servers := len(f.index) / world.Namespaces
	opened := f.table.Map("service_opened")
	for k := range count {
		client := 1 + k%(world.Namespaces-1) // of another team
		server := k / (world.Namespaces - 1) % servers * world.Namespaces
		key := openedKey{Src: world.Addrs(0, client)[0].As16(),
			Dst:   world.Addrs(0, server)[0].As16(),
			Proto: unix.IPPROTO_TCP}
		binary.BigEndian.PutUint16(key.SPort[:], uint16(1024+k/servers/(world.Namespaces-1)))
		binary.BigEndian.PutUint16(key.DPort[:], portOf(k))
		if err := opened.Put(key, openedLinks{f.index[client], f.index[server]}); err != nil {
			return fmt.Errorf("add connection %d: %w", k, err)
		}
	}
	return nil
}
