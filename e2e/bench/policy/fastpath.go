package policy

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/e2e/bench/bpffs"
	"github.com/kubeveil/kubeveil/e2e/bench/policy/lane"
	"github.com/kubeveil/kubeveil/e2e/bench/policy/world"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/guard"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/service"
	services "github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
	"github.com/kubeveil/kubeveil/pkg/service/link"
)

// caseFastPath is the time until a policy is in force that moves pods with open connections from
// the fast path to the slow path.
const caseFastPath = "change_fastpath"

// fastPath holds the links of a node's pods, and the maps of their programs.
type fastPath struct {
	*link.Links
	table *services.Table
	// index holds the ifindex of each pod's link, by the number of the pod.
	index []uint32
}

// openFastPath makes links with the programs of host routing for the node's pods, in the calling
// thread's namespace. It adds the cleanup to n.undo, also before it returns an error.
func openFastPath(n *node) (*fastPath, error) {
	f := &fastPath{}
	pods, err := world.NewSpace()
	if err != nil {
		return nil, err
	}
	n.undo.Add(pods.Close)
	for i := range n.Pods {
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
	n.undo.Add(pins.Close)
	log := slog.New(slog.DiscardHandler)
	g, err := guard.Open(pins.Dir(world.Here), log) // programs at links use its maps
	if err != nil {
		return nil, err
	}
	n.undo.Add(g.Close)
	f.table, err = services.Open(services.Config{Dir: pins.Dir(world.Here), Log: log, Links: true,
		Limits: service.Limits{Frontends: 1 << 10, BackendSlots: 1 << 12,
			Members: 1 << 10, SourceRanges: 1 << 10}})
	if err != nil {
		return nil, err
	}
	n.undo.Add(f.table.Close)

	f.Links = link.New(f.table, link.Options{HostRouting: true, Log: log})
	n.undo.Add(f.Links.CloseConntrack)
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

// open adds count connections to the map of the fast path, from pods of this node to the pods of
// team-0 on it.
func (f *fastPath) open(n *node, count int) error {
	servers := n.Pods / world.Namespaces
	opened := f.table.Map("service_opened")
	for k := range count {
		client := 1 + k%(world.Namespaces-1) // of another team
		server := k / (world.Namespaces - 1) % servers * world.Namespaces
		port := uint16(portRest)
		if k%connectionShare == 0 {
			port = portFew
		}
		key := openedKey{Src: world.Addrs(0, client)[0].As16(),
			Dst:   world.Addrs(0, server)[0].As16(),
			Proto: unix.IPPROTO_TCP}
		binary.BigEndian.PutUint16(key.SPort[:], uint16(1024+k/servers/(world.Namespaces-1)))
		binary.BigEndian.PutUint16(key.DPort[:], port)
		if err := opened.Put(key, openedLinks{f.index[client], f.index[server]}); err != nil {
			return fmt.Errorf("add connection %d: %w", k, err)
		}
	}
	return nil
}

// fastPaths measures the time until a policy is in force that moves pods from the fast path to the
// slow path. conntrack must then track exactly those of their open connections that the policy
// allows.
func (s *run) fastPaths(ctx context.Context, v values) (err error) {
	if err := room(s.scales.opened); err != nil {
		return err
	}
	alone := s.scales.node
	alone.Policies = 0
	n, f, err := newFastNode(world.Cluster{Scale: alone})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	n.Put(n, n.Nodes)
	if err := n.listed(ctx); err != nil {
		return err
	}

	few := (s.scales.opened + connectionShare - 1) / connectionShare
	for range s.Rounds {
		if err := f.wantFast(ctx, n.Pods); err != nil {
			return err
		}
		if err := f.open(n, s.scales.opened); err != nil {
			return err
		}
		took, err := n.change(ctx, func() { n.PutPolicy(access(portRest)) })
		if err != nil {
			return err
		}
		v.add(caseFastPath, millis(took))
		err = errors.Join(f.wantFast(ctx, n.Pods-n.Pods/world.Namespaces),
			n.tracks(s.scales.opened-few))
		if err != nil {
			return err
		}

		name := policy.Name{Namespace: world.NamespaceName(0), Name: access().Name.Name}
		if _, err := n.change(ctx, func() { n.DeletePolicy(name) }); err != nil {
			return err
		}
		if err := n.Do(lane.ForgetConnections); err != nil {
			return err
		}
		s.Progress("%.1f ms until a policy took the fast path from pods with %d connections",
			v.last(caseFastPath), s.scales.opened)
	}
	return nil
}

// wantFast waits until exactly want pods have the fast path.
func (f *fastPath) wantFast(ctx context.Context, want int) error {
	return poll(ctx, time.Millisecond, func() error {
		if got := len(f.Fast()); got != want {
			return fmt.Errorf("%d pods have the fast path, want %d", got, want)
		}
		return nil
	})
}
