package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/cmd/veil-tools/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/leak"
)

// watch reads the uplinks of this network namespace with the leak oracle, in parts. Each line of
// standard input is the canary of a new part. watch answers it with the oracle's result for the
// previous part, as a line of JSON. The answer to the first line has an empty result. watch returns
// at the end of the input.
func watch(ctx context.Context, args []string) (any, error) {
	flags := flagsOf("link-watch")
	nodes := flags.String("nodes", "", "addresses of the tunnels' endpoints, separated by commas")
	port := flags.Int("port", abi.TunnelPort, "UDP port of tunnels")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}

	rules := leak.Rules{TunnelPort: uint16(*port)}
	for _, s := range strings.Split(*nodes, ",") {
		addr, err := netip.ParseAddr(s)
		if err != nil {
			return nil, fmt.Errorf("--nodes: %w", err)
		}
		rules.Nodes = append(rules.Nodes, addr)
	}

	links, err := uplinks(rules.Nodes)
	if err != nil {
		return nil, err
	}
	o, err := leak.Start("", rules)
	if err != nil {
		return nil, err
	}

	for _, link := range links {
		if err := o.Watch(link); err != nil {
			return nil, err
		}
	}

	fmt.Fprintln(os.Stderr, "watching", strings.Join(links, ", "))
	if err := answerParts(o, os.Stdin, os.Stdout); err != nil {
		return nil, err
	}

	_, err = o.Stop()
	return nil, err
}

// answerParts answers each line of in with the result of the part that the line ends.
func answerParts(o *leak.Oracle, in io.Reader, out io.Writer) error {
	return verb.AnswerLines(in, out, func(line string) (any, error) {
		result, err := o.Take()
		if err != nil {
			return nil, err
		}
		o.Update(func(r *leak.Rules) { r.Canary = []byte(line) })
		// Send only examples of leaks, because the caller ignores others.
		result.Examples = slices.DeleteFunc(result.Examples,
			func(e leak.Example) bool { return !e.Kind.Leak() })
		return result, nil
	})
}

// uplinks returns the links by which frames leave a node. Such a link has a
// hardware device or an address of a node. A bridge, a bond, or the link of a network namespace
// that plays a node may have such an address.
func uplinks(nodes []netip.Addr) ([]string, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, i := range all {
		_, err := os.Stat(filepath.Join("/sys/class/net", i.Name, "device"))
		found := err == nil
		addrs, err := i.Addrs()
		if err != nil {
			return nil, fmt.Errorf("addresses of %s: %w", i.Name, err)
		}
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			found = found || err == nil && slices.Contains(nodes, p.Addr())
		}
		if found && i.Flags&net.FlagUp != 0 {
			names = append(names, i.Name)
		}
	}
	if len(names) == 0 {
		return nil, errors.New("no link has a hardware device or an address of --nodes")
	}
	return names, nil
}
