package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/connectivity"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// walkFlags are the flags of connectivity.
type walkFlags struct {
	access         remote.Access
	image          string
	nodes, outside string
	options        connectivity.WalkConfig
	timeout        time.Duration
}

// Connectivity returns the verb that runs connectivity.Walk and prints the result as lines or JSON.
func Connectivity() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "connectivity",
		Short: "Send every kind of flow between two nodes, and report what was encrypted",
		Long: `It starts five pods on two nodes, in a new namespace that it removes at the end. They
send every kind of flow between pods, services, nodes and the outside, over TCP and UDP, IPv4 and
IPv6. Meanwhile it reads the uplinks of both nodes. Each payload has its own canary. The verdict of
a flow is what was seen:

  encrypted               the payload came back; the uplinks had tunnel packets, but not the payload
  stays on the node       the payload came back, and no uplink had it
  refused                 the payload did not come back, and no uplink had it in clear
  outside the cluster     the payload left the cluster in clear; only right for the outside
  host to host, in clear  traffic of the hosts, in no tunnel (docs/security.md, exception 2)
  IN CLEAR                the payload was in clear where it must not be
  UNSEEN, FRAMES LOST     there is no verdict

First it sends traffic that must be seen in clear, from host to host. If it does not see that
traffic, the other results would prove nothing, so it ends with an error.

The nodes need the image kubeveil-tools of the release: import it, or push it to a registry of
theirs. If it has another name there, name it with --image. Two of the pods are on the host's
network, with NET_RAW. The exit status is 0 if every flow had the promised verdict, otherwise 1.`,
		Example: `veilctl connectivity --image registry.example/kubeveil-tools:v0.1.0
veilctl connectivity --nodes worker-1,worker-2 --outside 192.0.2.80:80
veilctl connectivity -o json | jq '.flows[] | select(.ok | not)'`,
	}
	fs := cmd.Flags()
	var f walkFlags
	f.access.Register(cmd.Flags())
	fs.StringVar(&f.image, "image", remote.ToolsImage(), verb.ImageUsage)
	fs.StringVar(&f.options.Namespace, "namespace", connectivity.DefaultNamespace,
		"beginning of the namespace's `name`")
	fs.StringVar(&f.nodes, "nodes", "", verb.NodesUsage)
	fs.StringVar(&f.outside, "outside", "",
		"`address:port` of a TCP server outside the cluster\n"+
			"that answers something, such as a web server;\n"+
			"one of each IP family, comma-separated")
	fs.IntVar(&f.options.HostPort, "host-port", connectivity.DefaultHostPort,
		"host `port` to use; the next port is used too")
	fs.IntVar(&f.options.TunnelPort, "tunnel-port", 0,
		"UDP `port` of the tunnels (default: from the node's VeilNode)")
	fs.DurationVar(&f.timeout, "timeout", 10*time.Minute, "maximum time, without the removal")
	return verb.Reporting(cmd, f.run)
}

// parse checks the flags, and splits those that hold lists.
func (f *walkFlags) parse() error {
	if f.timeout <= 0 {
		return fmt.Errorf("--timeout %v: write a time above 0: %w", f.timeout, verb.ErrUsage)
	}
	if port := f.options.HostPort; port < 1 || port > 65534 {
		return fmt.Errorf("--host-port %d: write a port below 65535: %w", port, verb.ErrUsage)
	}
	if f.nodes != "" {
		if f.options.Nodes = strings.Split(f.nodes, ","); len(f.options.Nodes) != 2 {
			return fmt.Errorf("--nodes %s: write two names with a comma between: %w", f.nodes,
				verb.ErrUsage)
		}
	}
	if f.outside == "" {
		return nil
	}
	for _, text := range strings.Split(f.outside, ",") {
		addr, err := netip.ParseAddrPort(text)
		if err != nil {
			return fmt.Errorf("--outside %s: write address:port, such as 192.0.2.80:80 or "+
				"[2001:db8::80]:80: %w", text, verb.ErrUsage)
		}
		f.options.Outside = append(f.options.Outside, addr)
	}
	return nil
}

func (f *walkFlags) run(c verb.Call) error {
	if err := f.parse(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Ctx, f.timeout)
	defer cancel()
	cluster, err := remote.Connect(ctx, f.access, remote.ConnectConfig{Image: f.image})
	if err != nil {
		return err
	}

	f.tell(c)
	report, err := connectivity.Walk(ctx, cluster, f.options)
	if c.Ctx.Err() == nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("the walk took longer than --timeout %v: %w", f.timeout, err)
	}

	if len(report.Flows) > 0 {
		show := report.WriteEnd
		if c.JSON {
			show = func(w io.Writer) error { return verb.PrintJSON(w, report) }
		}
		if e := show(c.Out); e != nil {
			return e
		}
	}

	if err == nil && !report.OK() {
		err = verb.ErrWrong
	}
	return err
}

// tell makes the walk print its progress and, without -o json, the result of each kind of flow.
func (f *walkFlags) tell(c verb.Call) {
	began := time.Now()
	f.options.Step = func(what string) {
		fmt.Fprintf(c.Progress, "[%4.0fs] %s …\n", time.Since(began).Seconds(), what)
	}
	if c.JSON {
		return
	}
	headed := false
	f.options.Walked = func(flows []connectivity.Flow) {
		if !headed {
			headed = true
			_ = connectivity.WriteHead(c.Out)
		}
		_ = connectivity.WriteFlows(c.Out, flows)
	}
}
