package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/source"
	"github.com/kubeveil/kubeveil/pkg/telemetry/admin"
)

// snapshotFile is the file from which veild reads the nodes in a lab without an API server. It is
// on the node's tmpfs.
const snapshotFile = "/run/lab/snapshot.json"

// introduces reports whether the lab itself announces its nodes to each other, by snapshot files.
func (o Options) introduces() bool {
	return o.Network == Veil && (o.NoAPIServer || o.Sites) && o.Nodes > 0
}

// Introduce announces the nodes of a lab without an API server to each other. It writes a snapshot
// of all nodes, waits until each veild shows the key that it made, and writes the snapshot again
// with the keys. New calls it; call it again after a node has a new key.
func (l *Lab) Introduce(ctx context.Context) error {
	rows := make([]cluster.Node, 0, len(l.Nodes()))
	for _, n := range l.Nodes() {
		rows = append(rows, n.row())
	}
	// The first snapshot has no claims, because the keys do not exist yet. Each node finds its pod
	// prefixes there and makes its tunnel.
	if err := l.writeSnapshots(rows); err != nil {
		return err
	}

	for i, n := range l.Nodes() {
		claim, err := n.claim(ctx)
		if err != nil {
			return fmt.Errorf("introduce %s: %w", n.Name, err)
		}
		rows[i].Claim = claim
	}
	l.mu.Lock()
	rows = append(rows, l.announced...)
	l.mu.Unlock()
	return errors.Join(l.writeSnapshots(rows), l.writeSiteNodes(ctx, rows))
}

// row returns the node's row in a snapshot, without a claim.
func (n *Node) row() cluster.Node {
	// Of two conflicting claims, the older node's wins. Only a stable order is needed here.
	created := time.Date(2026, 1, 1, 0, 0, n.Number, 0, time.UTC)
	return cluster.Node{Name: n.Name, Created: created, Addresses: n.Addrs,
		PodPrefixes: n.PodPrefixes}
}

// claim waits for the node's key and returns the claim that the node would publish.
func (n *Node) claim(ctx context.Context) (*cluster.Claim, error) {
	c := &cluster.Claim{PodPrefixes: n.PodPrefixes, MTU: n.lab.opts.UnderlayMTU}
	err := Until(ctx, 60*time.Second, func() error {
		if p := n.Program("veild"); p != nil && !p.Running() {
			return Stop(fmt.Errorf("veild has ended: %w: %s", p.Ended(), p.Tail()))
		}
		s, err := admin.Fetch(ctx, n.Path(abi.AdminSocket))
		if err != nil {
			return err
		}
		// Before the tunnel device is configured, it has a key and a port that the kernel chose.
		if !s.Ready || len(s.Devices) == 0 || s.Devices[0].Port != abi.TunnelPort {
			return errors.New("its tunnel is not configured yet")
		}
		c.Keys = []cluster.Key{{Epoch: s.Devices[0].Epoch, Public: s.Devices[0].PublicKey}}
		c.Endpoints = nil
		for _, a := range n.Addrs {
			c.Endpoints = append(c.Endpoints, netip.AddrPortFrom(a, abi.TunnelPort))
		}
		return nil
	})
	return c, err
}

// writeSnapshots writes a snapshot with rows to every node.
func (l *Lab) writeSnapshots(rows []cluster.Node) error {
	rows = slices.Clone(rows)
	slices.SortFunc(rows, func(a, b cluster.Node) int { return strings.Compare(a.Name, b.Name) })
	l.mu.Lock()
	l.rows = rows
	l.mu.Unlock()

	for _, n := range l.Nodes() {
		w, err := source.NewWriter(n.Path(snapshotFile), false)
		if err == nil {
			err = w.Write(cluster.Table{Peers: n.seen(rows)}, cluster.Delta{})
		}
		if err != nil {
			return fmt.Errorf("%s: %w", n.Name, err)
		}
	}
	return nil
}

// Announce adds a node that does not exist to the cluster, as an administrator could. It creates a
// Node and, if n has a claim, a VeilNode at the API server. In a lab without an API server, it adds
// a row to the snapshots.
func (l *Lab) Announce(ctx context.Context, n cluster.Node) error {
	if l.Control != nil {
		return l.Control.objects().AddNode(ctx, n)
	}
	if n.Created.IsZero() {
		n.Created = time.Now()
	}
	l.mu.Lock()
	l.announced = append(l.announced, n)
	rows := append(slices.Clone(l.rows), n)
	l.mu.Unlock()
	return l.writeSnapshots(rows)
}

// Withdraw removes the node called name that Announce has added.
func (l *Lab) Withdraw(ctx context.Context, name string) error {
	if l.Control != nil {
		return l.Control.objects().DeleteNode(ctx, name)
	}
	named := func(n cluster.Node) bool { return n.Name == name }
	l.mu.Lock()
	l.announced = slices.DeleteFunc(l.announced, named)
	rows := slices.DeleteFunc(slices.Clone(l.rows), named)
	l.mu.Unlock()
	return l.writeSnapshots(rows)
}
