package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/guard"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/tunnel"
)

// statusLimit bounds how long a status may take.
const statusLimit = 2 * time.Second

// Status is what is shown of this node now. Any goroutine may call it.
func (a *Agent) Status() telemetry.Status {
	ctx, cancel := context.WithTimeout(context.Background(), statusLimit)
	defer cancel()
	tunnels, tunnelErr := a.tunnels.Status(ctx)
	pods := a.pods.seen.Load()

	a.mu.Lock()
	defer a.mu.Unlock()
	s := telemetry.Status{
		Node: a.cfg.Node, Version: a.version, Started: a.started,
		Source: telemetry.Source{Kind: a.cfg.Source.Kind, Synced: a.state.Synced, Changed: a.changed},
		Table: telemetry.Table{
			Revision: a.state.Revision, Applied: a.applied, Waiting: a.waiting,
			Prefixes: len(a.last.guard.Ranges), NodeAddrs: len(a.last.guard.NodeAddrs),
		},
		Pods:      pods.count,
		MTU:       a.mtuStatus(),
		Flowtable: a.flowtable,
		Refused:   slices.Clone(a.refusals),
		InClear:   inClear(a.cfg),
		Problems:  slices.Concat(a.problems, pods.problems),
	}
	if a.configProblem != "" {
		s.Problems = append(s.Problems, a.configProblem)
	}
	if a.kube != nil {
		s.Problems = append(s.Problems, a.kube.Problems()...)
	}
	if tunnelErr != nil {
		s.Problems = append(s.Problems, fmt.Sprintf("the tunnels cannot be read: %v", tunnelErr))
	}
	var problems []string
	s.Services, problems = a.serviceStatus()
	s.Problems = append(s.Problems, problems...)
	s.Devices, s.Peers = a.peerStatus(tunnels)
	var err error
	if s.Guard, err = a.guardStatus(); err != nil {
		s.Problems = append(s.Problems, fmt.Sprintf("the guard cannot be read: %v", err))
	} else if p := a.marks.problem(s.Guard.MarksRestored, time.Now()); p != "" {
		s.Problems = append(s.Problems, p)
	}
	return s
}

// inClear names what crosses the network in clear as configured.
func inClear(cfg config.Config) []string {
	out := []string{"masqueraded traffic that leaves the cluster", "host to host traffic"}
	if open := cfg.OpenNodeRanges(); open != "" {
		out = append(out, "what pods send to "+open)
	}
	return out
}

func (a *Agent) mtuStatus() telemetry.MTU {
	underlay := a.underlay.MTU
	m := telemetry.MTU{Pod: a.last.podMTU}
	if a.cfg.MTU > 0 {
		m.Explanation = append(m.Explanation, fmt.Sprintf("%6d  set by `mtu` in the configuration; %s has %d", a.cfg.MTU, a.underlay.Name, underlay))
		underlay = a.cfg.MTU
	}
	m.Underlay = underlay
	outer6 := len(a.last.host.SelfAddrs) > 0 && !cluster.Node{Addresses: a.last.host.SelfAddrs}.AddressFamilies().V4
	for _, l := range cluster.ExplainMTU(underlay, outer6) {
		m.Explanation = append(m.Explanation, fmt.Sprintf("%6d  %s", l.Bytes, l.What))
	}
	return m
}

func (a *Agent) peerStatus(tunnels tunnel.State) ([]telemetry.Device, []telemetry.Peer) {
	var devices []telemetry.Device
	var peers []telemetry.Peer
	mtus := map[string]int{}
	for _, p := range a.last.host.Peers {
		mtus[p.Name] = p.MTU
	}
	seen := map[string]bool{}
	for _, d := range tunnels.Devices {
		devices = append(devices, telemetry.Device{
			Name: d.Name, Kind: string(d.Kind), PublicKey: d.PublicKey, Port: d.ListenPort, MTU: d.MTU, Up: d.Up && d.Served,
		})
		for _, p := range d.Peers {
			seen[p.Name] = true
			peers = append(peers, telemetry.Peer{
				Name: p.Name, State: telemetry.PeerState(p.Contact), Heard: p.Heard, Device: d.Name, PublicKey: p.PublicKey,
				Endpoint: p.Endpoint, AllowedIPs: p.AllowedIPs, Handshake: p.LastHandshake,
				Received: uint64(p.Received), Sent: uint64(p.Sent), MTU: mtus[p.Name],
			})
			if p.Contact == tunnel.ContactSilent {
				peers[len(peers)-1].SilentSince = p.Unanswered
			}
		}
	}
	if a.lastGood != nil {
		for _, n := range a.lastGood.Keyless {
			peers = append(peers, telemetry.Peer{Name: n.Name, State: telemetry.PeerKeyless})
			seen[n.Name] = true
		}
	}
	for _, r := range a.refusals {
		if !seen[r.Node] {
			seen[r.Node] = true
			peers = append(peers, telemetry.Peer{Name: r.Node, State: telemetry.PeerRefused})
		}
	}
	return devices, peers
}

func (a *Agent) guardStatus() (telemetry.Guard, error) {
	state, err := a.guard.Read()
	if err != nil {
		return telemetry.Guard{}, err
	}
	return guardStatus(a.guard, state)
}

// guardStatus shows a guard: where it is attached and what it dropped.
func guardStatus(g *guard.Guard, state *guard.State) (telemetry.Guard, error) {
	out := telemetry.Guard{InForce: true, Links: []string{}, Ranges: state.Ranges, NodeAddrs: state.Nodes}
	for _, l := range state.Links {
		if !l.Guarded {
			continue
		}
		ingress, egress := state.Points[guard.Point{Index: l.Index, Hook: guard.Ingress}], state.Points[guard.Point{Index: l.Index, Hook: guard.Egress}]
		if len(ingress.Ours) == 0 || len(egress.Ours) == 0 {
			out.InForce = false
			continue
		}
		out.Links = append(out.Links, l.Name)
	}
	counts, err := g.Counters()
	if err != nil {
		return out, err
	}
	out.MarksRestored = counts[guard.MarksRestored]
	for _, r := range guard.Reasons() {
		out.Drops = append(out.Drops, telemetry.Drop{Number: r.Number, Name: r.Name, Sentence: r.Sentence, Packets: counts[r.Name]})
	}
	return out, nil
}
