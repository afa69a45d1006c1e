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
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// followEvery is the interval between requests for new packets.
const followEvery = 500 * time.Millisecond

// Drops returns the verb that shows dropped packets.
func Drops() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "drops",
		Short: "Show the last dropped packets: why, from where to where, by which policy",
		Long: `veild keeps the headers of the last 4,096 dropped packets, with a share for each pod.
They are lost when veild ends. At most 200 packets per second and reason are kept; the last lines
of the output count the others. veilctl guard counts all dropped packets.
-o json prints one object per packet and line, and writes all other lines to standard error.`,
		Example: `veilctl drops --pod shop/web-0 --since 10m
veilctl drops --reason policy_ingress --follow
veilctl drops -o json | jq -r .reason | sort | uniq -c`,
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

		s := dropStream{call: c, socket: socket, query: query, notes: c.Out}
		if c.JSON {
			s.notes = c.Progress
		}
		if *follow {
			return s.follow()
		}
		if err := s.next(); err != nil {
			return err
		}
		return s.noteSkipped()
	})
}

// dropStream prints dropped packets, each once.
type dropStream struct {
	call   verb.Call
	socket string
	query  url.Values
	// notes receives lines about the packets that are not shown.
	notes io.Writer
	// last is the last answer of veild.
	last telemetry.Drops
	// headed reports whether the head of the table was printed.
	headed bool
}

// next prints the packets that veild has sampled since the last call.
func (s *dropStream) next() error {
	var d telemetry.Drops
	s.query.Set("after", fmt.Sprint(s.last.Last))
	page := telemetry.DropsPath + "?" + s.query.Encode()
	if err := verb.FetchPage(s.call.Ctx, s.socket, page, &d); err != nil {
		return err
	}
	if !d.Since.Equal(s.last.Since) || d.Problem != s.last.Problem {
		s.noteBegin(d)
	}
	s.last = d
	return s.print(d.Packets)
}

// noteBegin prints why packets are not sampled, or how many were dropped before sampling began.
func (s *dropStream) noteBegin(d telemetry.Drops) {
	switch {
	case d.Problem != "":
		fmt.Fprintf(s.notes, "Some dropped packets are only counted, not shown: %s\n", d.Problem)
	case d.Before > 0:
		fmt.Fprintf(s.notes, "veild began at %s; %d packets dropped earlier are only counted.\n",
			stamp(d.Since), d.Before)
	}
}

// noteSkipped prints how many dropped packets were not sampled, by reason.
func (s *dropStream) noteSkipped() error {
	for _, reason := range slices.Sorted(maps.Keys(s.last.Skipped)) {
		fmt.Fprintf(s.notes, "Not shown: %d packets dropped for %s since %s\n",
			s.last.Skipped[reason], reason, stamp(s.last.Since))
	}
	return nil
}

// follow prints packets until the call is interrupted. If veild ends meanwhile, follow waits until
// veild answers again.
func (s *dropStream) follow() error {
	if err := s.next(); err != nil {
		return err
	}
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	away := false
	for {
		select {
		case <-s.call.Ctx.Done():
			return nil
		case <-tick.C:
		}
		err := s.next()
		switch {
		case s.call.Ctx.Err() != nil:
			return nil
		case errors.Is(err, verb.ErrNoDaemon):
			if !away {
				fmt.Fprintln(s.notes, "veild does not answer; waiting for it")
			}
		case err != nil:
			return err
		}
		away = err != nil
	}
}

func (s *dropStream) print(packets []telemetry.DroppedPacket) error {
	if s.call.JSON {
		lines := json.NewEncoder(s.call.Out)
		for _, p := range packets {
			if err := lines.Encode(p); err != nil {
				return err
			}
		}
		return nil
	}
	t := tabwriter.NewWriter(s.call.Out, 0, 0, 2, ' ', 0)
	if !s.headed {
		fmt.Fprintln(t, "TIME\tREASON\tFROM\tTO\tPROTOCOL\tBYTES\tIN\tOUT\tPEER\tDENIED BY")
		s.headed = true
	}
	for _, p := range packets {
		fmt.Fprintln(t, strings.Join([]string{stamp(p.Time), p.Reason,
			end(p.SrcPod, p.Src, p.SrcPort), end(p.DstPod, p.Dst, p.DstPort),
			verb.OrDash(p.Protocol), fmt.Sprint(p.Length), verb.OrDash(p.In), verb.OrDash(p.Out),
			verb.OrDash(p.Peer), verb.OrDash(deniedBy(p))}, "\t"))
	}
	return t.Flush()
}

// stamp formats a time in the local time zone, without the year.
func stamp(t time.Time) string { return t.Local().Format("01-02 15:04:05.000") }

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
	return strings.Join(p.Policies, ", ") + ": " + p.Rule
}
