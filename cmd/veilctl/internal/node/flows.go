package node

import (
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// flowWords describes the classes of connections in the summary.
var flowWords = map[telemetry.FlowClass]string{
	telemetry.FlowTunnel:  "in the tunnel",
	telemetry.FlowLocal:   "local: they stay on the node",
	telemetry.FlowOutside: "outside, in clear",
	telemetry.FlowHost:    "host to host, in clear",
	telemetry.FlowRefused: "refused",
}

// Flows returns the verb that shows connections.
func Flows() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "flows",
		Short: "Show connections: in the tunnel, on the node, in clear, or refused",
		Long: `The class of a connection follows from the present routes of the kernel, the tunnel's
peers and the guard. ROW is the exception of docs/security.md that allows a connection in clear.
WHY has the last dropped packet of a connection without an answer, in UTC: it never changes that a
connection is in clear.
NONE means that no exception allows it: a connection between a pod and the cluster is in clear. The
exit status is then 1.

The classes are tunnel, local (stays on the node), outside (in clear), host (host to host, in clear)
and refused (no route, no peer, or a packet was dropped in the last two minutes). veild counts all
connections, and returns at most 2,000 of each class.

-o json prints one object per connection and line, and last an object with the field summary.`,
		Example: `veilctl flows --clear
veilctl flows --pod shop/web-0 --class tunnel,refused
veilctl flows --cluster --clear -o json | jq 'select(.alarm)'`,
	}

	fs := cmd.Flags()
	pod := fs.String("pod", "", "only connections of this pod, `NAMESPACE/NAME`")
	classes := fs.StringSlice("class", nil, "only connections of these `classes`: tunnel, local,\n"+
		"outside, host, refused")
	inClear := fs.Bool("clear", false, "only connections in clear: --class outside,host")

	return verb.OnNodeLines(cmd, func(c verb.Call, socket string) error {
		query := url.Values{"class": *classes}
		if *inClear && len(*classes) > 0 {
			return fmt.Errorf("give --clear or --class, not both: %w", verb.ErrUsage)
		}
		if *inClear {
			query["class"] = []string{string(telemetry.FlowOutside), string(telemetry.FlowHost)}
		}
		if *pod != "" {
			query.Set("pod", *pod)
		}

		var f telemetry.Flows
		page := telemetry.FlowsPath + "?" + query.Encode()
		if err := verb.FetchPage(c.Ctx, socket, page, &f); err != nil {
			return err
		}
		show := showFlows
		if c.JSON {
			show = printFlows
		}
		if err := show(c.Out, f, query["class"]); err != nil || f.Alarms == 0 {
			return err
		}
		return verb.ErrWrong
	})
}

// printFlows prints a JSON object per connection, and then the summary.
func printFlows(w io.Writer, f telemetry.Flows, _ []string) error {
	lines := json.NewEncoder(w)
	for _, flow := range f.Flows {
		if err := lines.Encode(flow); err != nil {
			return err
		}
	}
	f.Flows = nil
	return lines.Encode(map[string]flowSummary{"summary": {Flows: f}})
}

// flowSummary is a telemetry.Flows without the field flows. Omitted hides that field in JSON.
type flowSummary struct {
	telemetry.Flows
	Omitted *struct{} `json:"flows,omitempty"`
}

func showFlows(w io.Writer, f telemetry.Flows, classes []string) error {
	var rows [][]string
	for _, flow := range f.Flows {
		original := "-"
		if flow.Original.IsValid() {
			original = end("", flow.Original, flow.OriginalPort)
		}
		rows = append(rows, []string{string(flow.Class), flowRow(flow),
			end(flow.ClientPod, flow.Client, flow.ClientPort),
			end(flow.ServerPod, flow.Server, flow.ServerPort), original, flow.Protocol,
			verb.OrDash(flow.Link), verb.OrDash(flow.Peer), verb.OrDash(flowWhy(flow))})
	}
	if len(rows) > 0 {
		err := verb.Table(w, "CLASS | ROW | FROM | TO | BY | PROTOCOL | LINK | PEER | WHY", rows)
		if err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	return showFlowSummary(w, f, classes)
}

// flowRow returns the number of the exception that allows a connection in clear.
func flowRow(f telemetry.Flow) string {
	switch {
	case f.Alarm:
		return "NONE"
	case f.Row == 0:
		return "-"
	}
	return fmt.Sprint(f.Row)
}

// flowWhy returns why a connection is refused, and why and when one of its packets was dropped.
func flowWhy(f telemetry.Flow) string {
	switch {
	case f.DroppedAt.IsZero():
		return f.Reason
	case f.Reason == f.Dropped:
		return f.Reason + " at " + stamp(f.DroppedAt)
	}
	dropped := fmt.Sprintf("a packet was dropped for %s at %s", f.Dropped, stamp(f.DroppedAt))
	return strings.TrimPrefix(f.Reason+"; "+dropped, "; ")
}

// showFlowSummary prints a line for each selected class, notes about connections that are not
// shown, and the number of alarms.
func showFlowSummary(w io.Writer, f telemetry.Flows, classes []string) error {
	for _, class := range telemetry.FlowClasses() {
		if len(classes) > 0 && !slices.Contains(classes, string(class)) {
			continue
		}
		line := fmt.Sprintf("%6d %s", f.Count[class], flowWords[class])
		if n := f.LeftOut[class]; n > 0 {
			line += fmt.Sprintf("; %d of them are not shown: choose a pod with --pod", n)
		}
		fmt.Fprintln(w, line)
	}
	if f.Outer > 0 {
		fmt.Fprintf(w, "%6d more connections carry the tunnels themselves\n", f.Outer)
	}
	for _, note := range f.Notes {
		fmt.Fprintln(w, note)
	}
	if f.Alarms == 0 {
		return nil
	}
	_, err := fmt.Fprintf(w, "ALARM: %d connections of pods with the cluster are in clear, which no "+
		"exception allows.\nThey are the rows NONE: the guard is not attached to the link by "+
		"which they leave. veilctl status names the cause.\n", f.Alarms)
	return err
}
