package node

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/node"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// Peers returns the verb that shows other nodes as peers of the tunnel.
func Peers() *cobra.Command {
	return verb.OnNode(&cobra.Command{
		Use: "peers", Short: "Show other nodes: state, endpoint, handshake, bytes",
		Example: `veilctl peers -o json | jq '.[] | select(.state != "up")'
veilctl peers --cluster -o json | jq '.nodes[] | select(.error)'`,
	}, peers)
}

func peers(c verb.Call, socket string) error {
	s, err := verb.FetchStatus(c.Ctx, socket)
	if err != nil {
		return err
	}
	if c.JSON {
		if s.Peers == nil {
			s.Peers = []telemetry.Peer{}
		}
		return verb.PrintJSON(c.Out, s.Peers)
	}
	var rows [][]string
	for _, p := range s.Peers {
		endpoint, mtu := "-", "-"
		if p.Endpoint.IsValid() {
			endpoint = p.Endpoint.String()
		}
		if p.Device != "" {
			mtu = fmt.Sprint(orDevice(p.MTU, s.MTU.Pod))
		}
		rows = append(rows, []string{p.Name, string(p.State), verb.OrDash(p.Device), endpoint,
			age(p.Handshake), age(p.Heard), fmt.Sprint(p.Received), fmt.Sprint(p.Sent), mtu})
	}
	return verb.Table(c.Out,
		"NODE | STATE | DEVICE | ENDPOINT | HANDSHAKE | HEARD | RECEIVED | SENT | MTU", rows)
}

func orDevice(mtu, device int) int {
	if mtu == 0 {
		return device
	}
	return mtu
}

// MTU returns the verb that explains the MTU of pods.
func MTU() *cobra.Command {
	return verb.OnNode(&cobra.Command{
		Use: "mtu", Short: "Show where the MTU of pods comes from, number by number",
		Example: "veilctl mtu\nveilctl mtu --node worker-1",
	}, mtu)
}

func mtu(c verb.Call, socket string) error {
	s, err := verb.FetchStatus(c.Ctx, socket)
	if err != nil {
		return err
	}
	if c.JSON {
		return verb.PrintJSON(c.Out, s.MTU)
	}
	for _, line := range s.MTU.Explanation {
		fmt.Fprintln(c.Out, line)
	}
	for _, p := range s.Peers {
		if p.MTU != 0 {
			fmt.Fprintf(c.Out, "%6d  on the way to %s, which is narrower\n", p.MTU, p.Name)
		}
	}
	return nil
}

// Guard returns the verb that shows the guard and its drops.
func Guard() *cobra.Command {
	return verb.OnNode(&cobra.Command{
		Use: "guard", Short: "Show where the guard is attached and what it dropped, by reason",
		Example: "veilctl guard\nveilctl guard --cluster",
	}, guardDrops)
}

func guardDrops(c verb.Call, socket string) error {
	s, err := verb.FetchStatus(c.Ctx, socket)
	if err != nil {
		return err
	}
	return c.Print(s.Guard, !s.Guard.InForce, func() error {
		fmt.Fprintf(c.Out, "Attached, both ways: %s\n\n", strings.Join(s.Guard.Links, ", "))
		var rows [][]string
		for _, d := range s.Guard.Drops {
			rows = append(rows, []string{fmt.Sprint(d.Number), d.Name, fmt.Sprint(d.Packets),
				d.Sentence})
		}
		return verb.Table(c.Out, "NO | REASON | PACKETS | MEANING", rows)
	})
}

// Host returns the verb that shows Kubeveil's state in the kernel.
func Host() *cobra.Command {
	cmd := &cobra.Command{
		Use: "host",
		Short: "Show the kernel's links, addresses, rules, routes and nftables, for a " +
			"bug report",
		Long:    "It needs no veild, changes nothing, and shows no key.",
		Example: "veilctl host > host.txt",
	}
	confDir := cmd.Flags().String("cni-conf-dir", abi.CNIConfDir,
		"`directory` of CNI configurations")
	return verb.New(cmd, func(c verb.Call) error { return node.Describe(c.Out, *confDir) })
}
