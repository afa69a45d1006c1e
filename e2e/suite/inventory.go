package suite

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// inventory lists all that a program could have left on a node, a line each.
type inventory []string

// inventoryScript prints it. Rules of kube-proxy change with services, and in the tables called nat are those of iptables' users, portmap among them, whose
// chains stay.
const inventoryScript = `
for f in -4 -6; do
  ip $f rule | sed "s/^/rule $f /"
  ip -N $f route show table all | sed "s/^/route $f /"
done
ip -o link | awk '{sub(/@.*|:$/, "", $2); print "link", $2}'
nft -s list ruleset | awk '/^table .* (kube-proxy|nat) \{/ {skip=1} !skip {print "nft", $0} /^}/ {skip=0}'
tc qdisc show | sed 's/^/qdisc /'
for l in $(ls /sys/class/net); do for d in ingress egress; do tc filter show dev $l $d 2>/dev/null | sed "s/^/filter $l $d /"; done; done
for d in /etc/cni /opt/cni /run/kubeveil /run/wireguard /sys/fs/bpf; do find $d 2>/dev/null | sed 's/^/file /'; done
grep -s . /proc/sys/net/ipv[46]/conf/*/rp_filter /proc/sys/net/ipv[46]/conf/*/forwarding /proc/sys/net/ipv[46]/conf/*/src_valid_mark /proc/sys/net/ipv[46]/conf/*/accept_local | sed 's/^/setting /'
true
`

// inventories looks at every node, the control plane's host included.
func (s *Session) inventories(ctx context.Context) (map[string]inventory, error) {
	nodes, err := s.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]inventory{}
	for _, n := range nodes {
		text, err := s.Machines.Exec(ctx, n.Name, inventoryScript)
		if err != nil {
			return nil, fmt.Errorf("inventory of %s: %w", n.Name, err)
		}
		if out[n.Name] = newInventory(string(text)); len(out[n.Name]) == 0 {
			return nil, fmt.Errorf("inventory of %s: nothing was listed", n.Name)
		}
	}
	return out, nil
}

func newInventory(text string) inventory {
	var lines inventory
	for line := range strings.Lines(text) {
		if line = strings.Join(strings.Fields(line), " "); line != "" && !changing(line) {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return lines
}

// changing says that a line is of what comes and goes by itself, or stays by intention (docs/install.md): forwarding and the empty qdisc clsact, which
// others may rely on by now, and empty directories where there were none.
func changing(line string) bool {
	switch {
	case strings.Contains(line, "/forwarding:"), strings.Contains(line, "/mc_forwarding:"), strings.HasPrefix(line, "qdisc qdisc clsact "):
		return true
	case line == "file /run/wireguard", line == "file /opt/cni", line == "file /opt/cni/bin", line == "file /etc/cni", line == "file /etc/cni/net.d":
		return true
	}
	return false
}

// difference lists what is in one inventory only, or more often there.
func difference(before, after inventory) (out []string) {
	count := map[string]int{}
	for _, line := range after {
		count[line]++
	}
	for _, line := range before {
		count[line]--
	}
	for line, n := range count {
		switch {
		case n > 0:
			out = append(out, "+ "+line)
		case n < 0:
			out = append(out, "- "+line)
		}
	}
	slices.Sort(out)
	return out
}
