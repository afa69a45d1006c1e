package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/internal/poll"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/guard"
	"github.com/kubeveil/kubeveil/pkg/guard/chains"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/tunnel"
)

const (
	// tunnelsLimit bounds the time for reading the tunnels, and statusLimit that for the whole
	// status. veilctl waits a second longer.
	tunnelsLimit = 2 * time.Second
	statusLimit  = 8 * time.Second
	// statusReadings bounds the readings of the status at a time.
	statusReadings = 8
)

// Status returns the current status of this node, or an error after statusLimit. Any goroutine may
// call it. A slow kernel delays only the caller: a netlink request waits without a limit for locks
// that the whole kernel shares, such as rtnl_mutex.
func (a *Agent) Status() (telemetry.Status, error) {
	if a.readings.Add(1) > statusReadings {
		a.readings.Add(-1)
		return telemetry.Status{}, fmt.Errorf("%d readings of the status have not ended: the "+
			"kernel, or a part of veild, is slow", statusReadings)
	}
	read := make(chan telemetry.Status, 1)
	go func() {
		defer a.readings.Add(-1)
		read <- a.readStatus()
	}()
	limit := time.NewTimer(statusLimit)
	defer limit.Stop()
	select {
	case s := <-read:
		return s, nil
	case <-limit.C:
		return telemetry.Status{}, fmt.Errorf("the status could not be read within %s: the "+
			"kernel, or a part of veild, is slow", statusLimit)
	}
}

func (a *Agent) readStatus() telemetry.Status {
	v := a.view.Load()

	ctx, cancel := context.WithTimeout(context.Background(), tunnelsLimit)
	defer cancel()
	tunnels, tunnelErr := a.tunnels.Status(ctx)
	shownGuard, guardErr := a.showGuard()
	pods := a.pods.Seen()

	s := v.status()
	s.Version, s.Started = a.version, a.started
	s.Pods, s.Guard = pods.Count, shownGuard
	s.MetricsRefused = a.metrics.Refused()
	s.Devices, s.Peers = v.peerStatus(tunnels)
	s.Problems = append(s.Problems, pods.Problems...)
	if v.configProblem != "" {
		s.Problems = append(s.Problems, v.configProblem)
	}
	if a.kube != nil {
		s.Problems = append(s.Problems, a.kube.Problems()...)
	}
	if tunnelErr != nil {
		s.Problems = append(s.Problems, fmt.Sprintf("the tunnels cannot be read: %v", tunnelErr))
	}
	for _, f := range a.features {
		f.Status(&s)
	}
	s.Problems = append(s.Problems, s.Faults(time.Now())...)
	if guardErr != nil {
		s.Problems = append(s.Problems, fmt.Sprintf("the guard cannot be read: %v", guardErr))
	} else {
		s.Problems = append(s.Problems, a.drops.Problems(s, time.Now())...)
	}
	return s
}

// status returns the part of the status that depends only on v.
func (v *view) status() telemetry.Status {
	return telemetry.Status{
		Node: v.cfg.Node,
		Source: telemetry.Source{Kind: v.cfg.Source.Kind, Synced: v.state.Synced,
			Changed: v.changed},
		Table: telemetry.TableStatus{
			Revision: v.state.Revision, Applied: v.applied, Waiting: v.waiting,
			Prefixes: len(v.last.Guard.Ranges), NodeAddrs: len(v.last.Guard.NodeAddrs),
		},
		MTU:       v.mtuStatus(),
		Flowtable: v.flowtable, TunnelSources: v.last.TunnelSources,
		Refused:  slices.Clone(v.refusals),
		Sites:    v.sites(),
		InClear:  inClear(v.cfg),
		Problems: slices.Clone(v.problems),
	}
}

// sites returns the sites of the configuration, with the numbers of their believed nodes.
func (v *view) sites() (sites []telemetry.Site) {
	nodes := map[string]int{}
	if v.lastGood != nil && len(v.cfg.Sites) > 0 {
		for _, p := range v.lastGood.Peers {
			nodes[p.Site()]++
		}
	}
	for _, s := range v.cfg.Sites {
		sites = append(sites, telemetry.Site{Site: s, Nodes: nodes[s.Name]})
	}
	return sites
}

// inClear describes the traffic that crosses the network in clear with this configuration.
func inClear(cfg config.Config) []string {
	out := []string{"masqueraded traffic that leaves the cluster", "host to host traffic"}
	if open := cfg.OpenNodeRanges(); open != "" {
		out = append(out, "traffic from pods to "+open)
	}
	return out
}

func (v *view) mtuStatus() telemetry.MTU {
	underlay := v.underlay.MTU
	m := telemetry.MTU{Pod: v.last.PodMTU}
	if v.cfg.MTU > 0 {
		m.Explanation = append(m.Explanation,
			fmt.Sprintf("%6d  set by `mtu` in the configuration; %s has %d", v.cfg.MTU,
				v.underlay.Name, underlay))
		underlay = v.cfg.MTU
	}
	m.Underlay = underlay
	outer6 := len(v.last.Host.SelfAddrs) > 0 &&
		!cluster.Node{Addresses: v.last.Host.SelfAddrs}.AddressFamilies().V4
	for _, l := range cluster.ExplainMTU(underlay, outer6) {
		m.Explanation = append(m.Explanation, fmt.Sprintf("%6d  %s", l.Bytes, l.What))
	}
	return m
}

func (v *view) peerStatus(tunnels tunnel.LiveState) ([]telemetry.Device, []telemetry.Peer) {
	var devices []telemetry.Device
	var peers []telemetry.Peer
	mtus := map[string]int{}
	for _, p := range v.last.Host.Peers {
		mtus[p.Name] = p.MTU
	}

	seen := map[string]bool{}
	for _, d := range tunnels.Devices {
		devices = append(devices, telemetry.Device{
			Name: d.Name, Kind: string(d.Kind), PublicKey: d.PublicKey, Port: d.ListenPort,
			MTU: d.MTU, Up: d.Up && d.Served, Drops: d.Drops, Offloads: d.Offloads,
		})
		for _, p := range d.Peers {
			seen[p.Name] = true
			peers = append(peers, telemetry.Peer{
				Name: p.Name, State: telemetry.PeerState(p.Contact), Heard: p.Heard, Device: d.Name,
				PublicKey: p.PublicKey,
				Endpoint:  p.Endpoint, AllowedIPs: p.AllowedIPs, Handshake: p.LastHandshake,
				Received: uint64(p.Received), Sent: uint64(p.Sent), MTU: mtus[p.Name],
				Singly: p.Singly,
			})
			if p.Contact == tunnel.ContactSilent {
				peers[len(peers)-1].SilentSince = p.Unanswered
			}
		}
	}

	if v.lastGood != nil {
		for _, n := range v.lastGood.Keyless {
			peers = append(peers, telemetry.Peer{Name: n.Name, State: telemetry.PeerKeyless})
			seen[n.Name] = true
		}
	}

	for _, r := range v.refusals {
		if !seen[r.Node] {
			seen[r.Node] = true
			peers = append(peers, telemetry.Peer{Name: r.Node, State: telemetry.PeerRefused})
		}
	}

	return devices, peers
}

// tunnelStatus returns the tunnels as they are read, and their peers.
func (a *Agent) tunnelStatus() ([]telemetry.Device, []telemetry.Peer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), tunnelsLimit)
	defer cancel()
	tunnels, err := a.tunnels.Status(ctx)
	devices, peers := a.view.Load().peerStatus(tunnels)
	return devices, peers, err
}

// tunnelDrops returns the packets that veil-wg dropped since its process began, by reason.
func (a *Agent) tunnelDrops() (map[string]uint64, error) {
	devices, _, err := a.tunnelStatus()
	drops := map[string]uint64{}
	for _, d := range devices {
		for reason, n := range d.Drops {
			drops[reason] += n
		}
	}
	return drops, err
}

// guardStatus returns the status of the guard: the links to which it is attached, and its drop
// counters.
func (a *Agent) guardStatus() (telemetry.Guard, error) {
	state, err := a.guard.Read()
	if err != nil {
		return telemetry.Guard{}, err
	}
	out := telemetry.Guard{InForce: true, Links: []string{}, Ranges: state.Ranges,
		NodeAddrs: state.Nodes}
	for _, l := range state.Links {
		if !l.Guarded {
			continue
		}
		// state.Points has no entry for a link that could not be read.
		ingress, egress := state.Points[guard.Point{Index: l.Index, Hook: guard.Ingress}],
			state.Points[guard.Point{Index: l.Index, Hook: guard.Egress}]
		if len(ingress.Ours) == 0 || len(egress.Ours) == 0 {
			out.InForce, out.Unguarded = false, append(out.Unguarded, l.Name)
			continue
		}
		out.Links = append(out.Links, l.Name)
	}

	counts, err := a.guard.Counters()
	if err != nil {
		return out, err
	}
	out.MarksRestored = counts[chains.MarksRestored]
	for _, r := range guard.Reasons() {
		out.Drops = append(out.Drops, telemetry.Drop{Number: r.Number, Name: r.Name,
			Sentence: r.Sentence, Packets: counts[r.Name], Harmless: guard.Harmless(r.Name)})
	}
	return out, nil
}

// watchDrops reads the guard's counters each resync until ctx ends. So status shows when a counter
// rose, even if status is rarely read.
func (a *Agent) watchDrops(ctx context.Context) error {
	look := func() {
		if shown, err := a.showGuard(); err == nil {
			a.drops.Problems(telemetry.Status{Guard: shown}, time.Now())
		}
	}
	look()
	return poll.Each(ctx, resync, func(time.Time) { look() })
}
