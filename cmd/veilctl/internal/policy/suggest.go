package policy

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/policy/suggest"
	"github.com/kubeveil/kubeveil/pkg/remote"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

func policySuggestCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "suggest NAMESPACE",
		Short: "Write NetworkPolicies that allow the known connections of a namespace's pods",
		Long: `It prints YAML for you to read and change, and applies nothing. Each group of pods
with the same labels gets a policy for both directions. Labels that differ between pods of one
workload are ignored. The rules allow each peer that has a connection now, on the connection's port.
They select pods by labels, and other peers by address. Comments explain the sources and the limits.

It only knows connections that are tracked at this moment: with --cluster on all nodes, which is
recommended, otherwise on one node. Run it several times while the namespace works as usual, and
then run veilctl policy try. With policy none, veild does not know the labels of pods. With
--hand-over, veilctl reads them from the API server with your rights and hands them to veild.

The exit status is 0 if all nodes answered, 1 if a node did not, 2 if the command line is wrong, and
3 if veild does not answer.`,
		Example: `veilctl policy suggest shop --cluster > shop.yaml
veilctl policy try -f shop.yaml --cluster`,
	}
	hand := cmd.Flags().Bool(handOver, false, handOverUsage)
	in := verb.Input{Flags: []string{handOver}}
	in.Read = func(ctx context.Context, open func() (*remote.Cluster, error)) ([]byte, error) {
		if !*hand {
			return nil, nil
		}
		h, err := readHanded(ctx, open)
		if err != nil {
			return nil, err
		}
		return json.Marshal(h)
	}
	return verb.OnNodeMerged(cmd, in, policySeen, writeSuggested)
}

// writeSuggested writes the policies that the answers of nodes suggest.
func writeSuggested(c verb.Call, answers []verb.Answer, missing []string) error {
	var seen []suggest.Seen
	for _, a := range answers {
		var s suggest.Seen
		if err := json.Unmarshal(a.JSON, &s); err != nil {
			return fmt.Errorf("answer of node %s: %w", a.Node, err)
		}
		if a.Node != "" { // A node does not answer for another one.
			s.Node = a.Node
		}
		seen = append(seen, s)
	}
	if err := suggest.Write(c.Out, c.Args[0], seen, missing); err != nil || len(missing) == 0 {
		return err
	}
	return verb.ErrWrong
}

// policySeen returns the connections of a namespace's pods that this node knows.
func policySeen(c verb.Call, socket string) (any, error) {
	if len(c.Args) != 1 {
		return nil, fmt.Errorf("name one namespace, such as shop: %w", verb.ErrUsage)
	}
	var s suggest.Seen
	input := c.Input
	if len(input) == 0 {
		input = []byte("{}")
	}
	err := verb.PostPage(c.Ctx, socket, telemetry.PolicySeenPage+"?"+
		url.Values{"namespace": {c.Args[0]}}.Encode(), input, &s)
	return s, err
}
