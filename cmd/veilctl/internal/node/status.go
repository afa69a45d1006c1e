package node

import (
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// PrintStatus prints the status of the veild behind socket. It returns verb.ErrWrong if veild is
// not ready or reports a problem.
func PrintStatus(c verb.Call, socket string) error {
	s, err := verb.FetchStatus(c.Ctx, socket)
	if err != nil {
		return err
	}
	wrong := !s.Ready || len(s.Problems) > 0
	return c.Print(s, wrong, func() error { return showStatus(c.Out, s) })
}

func showStatus(w io.Writer, s telemetry.Status) error {
	ready := "ready for pods"
	if !s.Ready {
		ready = "NOT ready: " + strings.Join(s.NotReady, ", ")
	}

	states := map[telemetry.PeerState]int{}
	for _, p := range s.Peers {
		states[p.State]++
	}

	guard := fmt.Sprintf("in force on %s; packets dropped: %d", strings.Join(s.Guard.Links, ", "),
		s.Guard.Blocked())
	if !s.Guard.InForce {
		guard = "NOT in force"
	}

	rows := [][]string{
		{"Node", fmt.Sprintf("%s, %s", s.Node, ready)},
		{"veild", fmt.Sprintf("%s, up %s", s.Version, age(s.Started))},
		{"Table", fmt.Sprintf("revision %d, applied %d, from %s%s", s.Table.Revision,
			s.Table.Applied, s.Source.Kind, syncedNote(s))},
		{"Peers", fmt.Sprintf("%d up, %d idle, %d silent, %d without a key, %d refused",
			states[telemetry.PeerUp], states[telemetry.PeerIdle], states[telemetry.PeerSilent],
			states[telemetry.PeerKeyless], states[telemetry.PeerRefused])},
		{"Guard", guard},
		{"MTU", fmt.Sprintf("%d for pods over %d", s.MTU.Pod, s.MTU.Underlay)},
		{"Pods", fmt.Sprint(s.Pods)},
		{"In clear", inClear(s)},
	}

	if s.TunnelSources != "" {
		rows = append(rows, []string{"Datagrams from", s.TunnelSources})
	}
	if s.Flowtable != "" {
		rows = append(rows, []string{"Flow table", s.Flowtable})
	}
	if s.Services != nil {
		rows = append(rows, []string{"Services", servicesLine(s.Services)})
	}
	if s.Policy != nil {
		rows = append(rows, []string{"Policies", policiesLine(s.Policy)})
		if line := ignoredLine(s.Policy.Ignored); line != "" {
			rows = append(rows, []string{"Identify no pod", line})
		}
	}

	if s.Connections != nil {
		rows = append(rows, []string{"Connections", connectionsLine(s.Connections)})
	}

	if d := s.DropSamples; d != nil && d.Problem != "" {
		rows = append(rows, []string{"Drops", "some are only counted, not sampled: " + d.Problem})
	}
	if n := s.MetricsRefused; n > 0 {
		rows = append(rows, []string{"Metrics", fmt.Sprintf("%d requests of other hosts were "+
			"refused: run Prometheus in a pod, since other answers would cross the network in "+
			"clear", n)})
	}

	for _, d := range s.Devices {
		rows = append(rows, []string{"Tunnel",
			fmt.Sprintf("%s (%s), UDP port %d, %s%s", d.Name, d.Kind, d.Port, upOrDown(d.Up),
				keyNote(d))})
		if off := offloadsOff(d, s.Peers); off != "" {
			rows = append(rows, []string{"Offloads", off})
		}
	}

	for _, site := range s.Sites {
		rows = append(rows, []string{"Site", siteLine(site)})
	}

	for _, r := range s.Refused {
		rows = append(rows, []string{"Refused", fmt.Sprintf("%s: %s", r.Node, r.Reason)})
	}

	for _, p := range s.Problems {
		rows = append(rows, []string{"PROBLEM", strings.ReplaceAll(p, "\n", "; ")})
	}

	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		fmt.Fprintf(t, "%s\t%s\n", r[0], r[1])
	}

	return t.Flush()
}

// connectionsLine describes how full the table of tracked connections is, and which pods are at
// their limit.
func connectionsLine(c *telemetry.Connections) string {
	line := fmt.Sprintf("%d of %d tracked, at most %d opened by one pod", c.Tracked, c.Max, c.Limit)
	if len(c.Opened) > 0 && len(c.Limited) == 0 {
		line += fmt.Sprintf("; %s opened the most, %d", c.Opened[0].Pod, c.Opened[0].Opened)
	}
	const shown = 5
	for i, p := range c.Limited {
		if i == shown {
			return fmt.Sprintf("%s, and %d more", line, len(c.Limited)-shown)
		}
		line += fmt.Sprintf("; %s has %d and can open no more", p.Pod, p.Opened)
	}
	return line
}

// siteLine describes a site in one line.
func siteLine(s telemetry.Site) string {
	state := "closed"
	if s.Open() {
		state = fmt.Sprintf("open, %d nodes are peers", s.Nodes)
	}
	if e := s.Exports; s.ExportsOnly() && e != nil {
		state = fmt.Sprintf("exports only, %d nodes are peers, %d endpoints of this node are open",
			s.Nodes, e.Open)
		if !e.Listed {
			state += " until exports have been read"
		}
	}
	return fmt.Sprintf("%s, %s; pods %s, nodes %s", s.Name, state, joined(s.PodRanges),
		joined(s.NodeRanges))
}

// joined returns prefixes separated by blanks.
func joined(prefixes []netip.Prefix) string {
	texts := make([]string, 0, len(prefixes))
	for _, p := range prefixes {
		texts = append(texts, p.String())
	}
	return strings.Join(texts, " ")
}

// keyNote returns a note for the line of a device if the device has no private key yet.
func keyNote(d telemetry.Device) string {
	if d.PublicKey == (wgkey.Public{}) {
		return ", no key yet"
	}
	return ""
}

// inClear returns the kinds of traffic that cross the network in clear. For an older veild, which
// does not report them, it returns the two kinds that such a veild has.
func inClear(s telemetry.Status) string {
	if len(s.InClear) == 0 {
		return "masqueraded traffic that leaves the cluster; host to host traffic"
	}
	return strings.Join(s.InClear, "; ")
}

// policiesLine describes the state of policies in one line.
func policiesLine(p *telemetry.Policy) string {
	line := "revision " + verb.OrDash(p.Revision) + " in force"
	switch {
	case !p.Listed:
		line = "not listed since veild started; the earlier policies stay in force"
	case p.Told != p.Revision:
		line += fmt.Sprintf("; revision %s was received and is not in force yet", verb.OrDash(p.Told))
	}
	line = fmt.Sprintf("%s; %d select pods of this node, %d pods are mute", line, p.Policies,
		p.Pending)
	if p.FastPath != nil {
		line += fmt.Sprintf(", %d pods have the fast path", *p.FastPath)
	}
	if p.Drafts > 0 {
		line += fmt.Sprintf("; large changes of %d namespaces wait to be planned, the oldest for %.1f s",
			p.Drafts, p.OldestDraft)
	}
	return line
}

// ignoredLine describes in one line the addresses that do not identify a pod; "" if there are none.
func ignoredLine(i *telemetry.IgnoredAddrs) string {
	if i == nil || i.OutsidePrefix+i.Shared == 0 {
		return ""
	}
	return fmt.Sprintf("%d addresses outside the prefixes of the pod's node, %d that several pods "+
		"claim; for example: %s", i.OutsidePrefix, i.Shared, strings.Join(i.Some, "; "))
}

// servicesLine describes the state of the table of services in one line.
func servicesLine(s *telemetry.Services) string {
	if s.APIOnly {
		return "by another program" + apiServersPart(s.APIServers) + apiFrontendsPart(s.APIFrontends)
	}
	line := fmt.Sprintf("%d by eBPF", s.Known)
	if !s.Listed {
		line = "by eBPF, from the earlier veild's table (not listed yet)"
	}
	for _, t := range s.Tables {
		if t.Limit == telemetry.LimitFrontends {
			line += fmt.Sprintf(", %d of %d addresses", t.Used, t.Size)
		}
	}
	line += apiServersPart(s.APIServers) + apiFrontendsPart(s.APIFrontends)
	switch {
	case s.HostRouting == config.HostRoutingEBPF:
		line += "; host routing by eBPF, past netfilter"
	case s.FastPathOff != "":
		line += "; host routing by the kernel until the node restarts: " + s.FastPathOff
	}
	return line
}

// apiServersPart returns the part of a line about API servers: how many answer and, for each, the
// connections of this node and its pods, and the reason why it gets no new connections.
func apiServersPart(servers []telemetry.APIServer) string {
	if len(servers) == 0 {
		return "; no API servers are known"
	}
	states := map[string]string{"silent": "silent, ", "not_ready": "not ready, ",
		"hangs": "its handlers hang, ", "slow": "slow, ", "certificate": "wrong certificate, "}
	up := 0
	var each []string
	for _, a := range servers {
		if a.Up {
			up++
		}
		each = append(each, fmt.Sprintf("%s: %s%d connections", a.Addr, states[a.State],
			a.Connections))
	}
	return fmt.Sprintf("; %d of %d API servers answer (%s)", up, len(servers),
		strings.Join(each, "; "))
}

// apiFrontendsPart returns the part of a line about services.apiFrontends.
func apiFrontendsPart(frontends []telemetry.APIFrontend) (part string) {
	for _, f := range frontends {
		if len(f.Servers) == 0 {
			part += fmt.Sprintf("; %s is not translated", f.Addr)
		} else {
			part += fmt.Sprintf("; %s is translated to %d of them", f.Addr, len(f.Servers))
		}
	}
	return part
}

func syncedNote(s telemetry.Status) string {
	switch {
	case s.Source.Synced:
		return ""
	case s.Ready: // ready by the last good table, without an answer from the source
		return " (no answer from it yet; the last good table is in force)"
	}
	return " (no answer from it yet)"
}

func upOrDown(up bool) string {
	if up {
		return "up"
	}
	return "DOWN"
}

func age(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return time.Since(t).Round(time.Second).String()
}

// offloadsOff describes which offloads of a device are off, and for which peers. It returns "" if
// all offloads are on.
func offloadsOff(d telemetry.Device, peers []telemetry.Peer) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(d.Offloads)) {
		if !d.Offloads[name] {
			out = append(out, name+" off")
		}
	}
	for _, p := range peers {
		if p.Singly && p.Device == d.Name {
			out = append(out, "udp_segment off to "+p.Name)
		}
	}
	return strings.Join(out, ", ")
}
