package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

const (
	// followEvery is the interval between requests for new packets.
	followEvery = 500 * time.Millisecond
	// skippedEvery is the interval in which --follow prints how many packets have no sample.
	skippedEvery = 10 * time.Second
)

// Drops returns the verb that shows dropped packets.
func Drops() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "drops",
		Short: "Show the last dropped packets: why, from where to where, by which policy",
		Long: `veild keeps the headers of the last 4,096 dropped packets, with a share for each pod.
They are lost when veild ends. At most 200 packets per second and reason are kept; the last lines
of the output count the others. Packets that veil-wg drops are only counted. veilctl guard counts
all packets that the guard dropped. Times are in UTC.

-o json prints one object per line: a packet with the field reason, or a remark about the packets
that are missing, with the field problem, gap, tunnels or skipped. With --follow, the packets
without a sample are counted every ten seconds and at the end. With --cluster --follow, a node whose
veild is replaced is followed again.

The exit status is 0 if veild answered, 1 if a reason is not known or a node did not answer, 2 if
the command line is wrong, 3 if veild does not answer, and 4 if no pod has the name of --pod.`,
		Example: `veilctl drops --pod shop/web-0 --since 10m
veilctl drops --reason policy_ingress --follow
veilctl drops -o json | jq -r '.reason // empty' | sort | uniq -c`,
	}

	fs := cmd.Flags()
	reason := fs.String("reason", "", "only packets with this drop reason, by its `name`;\n"+
		"see docs/reference/drop-reasons.md")
	pod := fs.String("pod", "", "only packets from or to this pod, `NAMESPACE/NAME`")
	since := fs.Duration("since", 0, "only packets of this last `time`, such as 10m")
	follow := fs.Bool("follow", false, "wait for further packets until Ctrl-C")

	return verb.OnNodeLines(cmd, func(c verb.Call, socket string) error {
		query := url.Values{}
		if *reason != "" {
			query.Set("reason", *reason)
		}
		if *pod != "" {
			query.Set("pod", *pod)
		}
		if *since < 0 {
			return fmt.Errorf("--since %s: write a positive time, such as 10m: %w", *since,
				verb.ErrUsage)
		}
		if *since > 0 {
			query.Set("since", time.Now().Add(-*since).Format(time.RFC3339Nano))
		}

		s := dropStream{call: c, socket: socket, query: query, reason: *reason, follows: *follow}
		if *follow {
			return s.follow()
		}
		if err := s.next(); err != nil {
			return err
		}
		return s.remarkSkipped()
	})
}

// dropStream prints dropped packets, each once.
type dropStream struct {
	call   verb.Call
	socket string
	query  url.Values
	// reason is the only reason that is shown; "" means all.
	reason  string
	follows bool
	// last is the last answer of veild.
	last telemetry.Drops
	// skipped is what remarkSkipped printed last.
	skipped map[string]uint64
	// headed reports whether the head of the table was printed.
	headed bool
}

// next prints the packets that veild has sampled since the last call.
func (s *dropStream) next() error {
	var packets []telemetry.DroppedPacket
	for {
		var d telemetry.Drops
		s.query.Set("after", fmt.Sprint(s.last.Last))
		page := telemetry.DropsPath + "?" + s.query.Encode()
		if err := verb.FetchPage(s.call.Ctx, s.socket, page, &d); err != nil {
			return err
		}
		if !d.Since.Equal(s.last.Since) || d.Problem != s.last.Problem {
			if err := s.remarkBegin(d); err != nil {
				return err
			}
		}
		s.last, packets = d, append(packets, d.Packets...)
		if !d.More || len(d.Packets) == 0 {
			return s.print(packets)
		}
	}
}

// dropRemark is a line about packets that are not shown, for programs. One of the first four fields
// is set.
type dropRemark struct {
	// Problem is the reason why packets are missing.
	Problem string `json:"problem,omitempty"`
	// Gap counts packets that were dropped before Since and have no sample.
	Gap uint64 `json:"gap,omitempty"`
	// Tunnels counts by reason the packets that veil-wg dropped since its process began.
	Tunnels map[string]uint64 `json:"tunnels,omitempty"`
	// Skipped counts by reason the packets of all pods of the node that were dropped after Since
	// and have no sample.
	Skipped map[string]uint64 `json:"skipped,omitempty"`
	Since   time.Time         `json:"since,omitzero"`
}

// remark prints r for programs, or its words for people.
func (s *dropStream) remark(r dropRemark, words string) error {
	if s.call.JSON {
		return json.NewEncoder(s.call.Out).Encode(r)
	}
	_, err := fmt.Fprintln(s.call.Out, words)
	return err
}

// remarkBegin prints why packets are not sampled, and how many were dropped before sampling began.
func (s *dropStream) remarkBegin(d telemetry.Drops) (err error) {
	if d.Problem != "" {
		err = s.remark(dropRemark{Problem: d.Problem},
			"Some dropped packets are only counted, not shown: "+d.Problem)
	}
	if err == nil && d.Before > 0 && !d.Since.IsZero() {
		err = s.remark(dropRemark{Gap: d.Before, Since: d.Since}, fmt.Sprintf("veild began at %s; "+
			"%d packets dropped earlier are only counted.", stamp(d.Since), d.Before))
	}
	if err == nil && d.Unread != "" {
		err = s.remark(dropRemark{Problem: d.Unread}, "Counts of veil-wg are missing: "+d.Unread)
	}
	if err == nil && len(d.Tunnels) > 0 && s.reason == "" {
		err = s.remark(dropRemark{Tunnels: d.Tunnels}, fmt.Sprintf("veil-wg only counts what it "+
			"drops. Since it began: %s.", reasonCounts(d.Tunnels)))
	}
	return err
}

// reasonCounts returns counts of packets by reason as words.
func reasonCounts(counts map[string]uint64) string {
	var words []string
	for _, reason := range slices.Sorted(maps.Keys(counts)) {
		words = append(words, fmt.Sprintf("%d for %s", counts[reason], reason))
	}
	return strings.Join(words, ", ")
}

// remarkSkipped prints how many dropped packets were not sampled, by reason, unless it has printed
// these numbers.
func (s *dropStream) remarkSkipped() error {
	skipped := maps.Clone(s.last.Skipped)
	maps.DeleteFunc(skipped, func(reason string, _ uint64) bool {
		return s.reason != "" && reason != s.reason
	})
	if len(skipped) == 0 || maps.Equal(skipped, s.skipped) {
		return nil
	}

	s.skipped = skipped
	since := "the node started"
	if !s.last.Since.IsZero() {
		since = stamp(s.last.Since)
	}
	var lines []string
	for _, reason := range slices.Sorted(maps.Keys(skipped)) {
		lines = append(lines, fmt.Sprintf("Not shown: %d packets of this node, of all pods, dropped "+
			"for %s since %s", skipped[reason], reason, since))
	}
	return s.remark(dropRemark{Skipped: skipped, Since: s.last.Since}, strings.Join(lines, "\n"))
}

// follow prints packets until the call is interrupted. If veild ends meanwhile, follow waits until
// veild answers again.
func (s *dropStream) follow() error {
	if err := s.next(); err != nil {
		return err
	}
	tick, count := time.NewTicker(followEvery), time.NewTicker(skippedEvery)
	defer tick.Stop()
	defer count.Stop()

	away := false
	for {
		select {
		case <-s.call.Ctx.Done():
			return s.remarkSkipped()
		case <-count.C:
			if err := s.remarkSkipped(); err != nil {
				return err
			}
			continue
		case <-tick.C:
		}

		err := s.next()
		switch {
		case s.call.Ctx.Err() != nil:
			return s.remarkSkipped()
		case errors.Is(err, verb.ErrNoDaemon):
			if !away {
				const problem = "veild does not answer; waiting for it"
				err = errors.Join(err, s.remark(dropRemark{Problem: problem}, problem))
			}
		case err != nil:
			return err
		}
		away = err != nil
	}
}

const dropHead = "TIME (UTC) | REASON | FROM | TO | PROTOCOL | BYTES | IN | OUT | PEER | DENIED BY"

// dropWidths are the widths of the columns with --follow, where later rows are not known.
var dropWidths = []int{20, 20, 36, 36, 8, 5, 15, 15, 12}

func (s *dropStream) print(packets []telemetry.DroppedPacket) error {
	var rows [][]string
	for _, p := range packets {
		if s.call.JSON {
			if err := json.NewEncoder(s.call.Out).Encode(p); err != nil {
				return err
			}
			continue
		}
		rows = append(rows, []string{stamp(p.Time), p.Reason,
			end(p.SrcPod, p.Src, p.SrcPort), end(p.DstPod, p.Dst, p.DstPort),
			verb.OrDash(p.Protocol), fmt.Sprint(p.Length), verb.OrDash(p.In), verb.OrDash(p.Out),
			verb.OrDash(p.Peer), verb.OrDash(deniedBy(p))})
	}
	switch {
	case s.call.JSON:
		return nil
	case s.follows:
		return s.printRows(rows)
	}
	return verb.Table(s.call.Out, dropHead, rows)
}

// printRows prints rows with columns of at least dropWidths, and the head before the first row.
func (s *dropStream) printRows(rows [][]string) error {
	if !s.headed {
		rows, s.headed = slices.Insert(rows, 0, strings.Split(dropHead, " | ")), true
	}
	for _, row := range rows {
		for i, width := range dropWidths {
			row[i] = fmt.Sprintf("%-*s", width, row[i])
		}
		if _, err := io.WriteString(s.call.Out, strings.Join(row, "  ")+"\n"); err != nil {
			return err
		}
	}
	return nil
}

// stamp formats a time in UTC, without the year.
func stamp(t time.Time) string { return t.UTC().Format("01-02 15:04:05.000") + "Z" }

// end formats one end of a packet: its pod, address and port, as far as they are known.
func end(pod string, a netip.Addr, port uint16) string {
	text := "-"
	if a.IsValid() {
		text = a.String()
	}
	if port != 0 {
		text = netip.AddrPortFrom(a, port).String()
	}
	return strings.TrimSpace(pod + " " + text)
}

// deniedBy returns the policies and the rule that denied a packet, or "" if no policy denied it.
func deniedBy(p telemetry.DroppedPacket) string {
	if p.Rule == "" {
		return ""
	}
	return verb.AndMore(p.Policies, p.MorePolicies) + ": " + p.Rule
}
