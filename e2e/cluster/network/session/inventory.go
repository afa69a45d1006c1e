package session

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// Inventory lists everything that a program could have left on a node, one line per object.
type Inventory []string

// inventoryScript is the shell script that prints an inventory.
const inventoryScript = `
for program in ip nft tc find awk sed; do command -v $program >/dev/null || { echo "$program is missing: nothing is proven without it" >&2; exit 1; }; done
for f in -4 -6; do
  ip $f rule | sed "s/^/rule $f /"
  ip -N $f route show table all | sed "s/^/route $f /"
done
ip -o link | awk '{sub(/@.*|:$/, "", $2); print "link", $2}'
nft -s list ruleset | sed 's/^/nft /'
tc qdisc show | sed 's/^/qdisc /'
for l in $(ls /sys/class/net); do for d in ingress egress; do tc filter show dev $l $d 2>/dev/null | sed "s/^/filter $l $d /"; done; done
awk '$4 == "[bpf]" && sub(/^bpf_prog_[0-9a-f]*_/, "", $3) {print "program", $3}' /proc/kallsyms | sort -u
for d in /etc/cni /opt/cni /var/lib/rancher /run/kubeveil /run/wireguard /sys/fs/bpf; do find $d 2>/dev/null | sed 's/^/file /'; done
grep -s . /proc/sys/net/ipv[46]/fwmark_reflect /proc/sys/net/ipv[46]/conf/*/rp_filter /proc/sys/net/ipv[46]/conf/*/forwarding /proc/sys/net/ipv[46]/conf/*/src_valid_mark /proc/sys/net/ipv[46]/conf/*/accept_local /proc/sys/net/ipv6/conf/*/accept_ra | sed 's/^/setting /'
true
`

// Inventories returns the inventory of every node, including the control plane's host, keyed by
// node. It leaves out BPF programs of that host, because it shares its kernel with other tests and
// BPF programs belong to no network namespace.
func (s *Session) Inventories(ctx context.Context) (map[string]Inventory, error) {
	nodes, err := s.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	machines, err := s.LinuxNodes(ctx)
	if err != nil {
		return nil, err
	}

	out := map[string]Inventory{}
	for _, n := range nodes {
		text, err := s.Lab.Exec(ctx, n.Name, inventoryScript)
		if err != nil {
			return nil, fmt.Errorf("inventory of %s: %w", n.Name, err)
		}
		out[n.Name] = newInventory(string(text))
		if !slices.Contains(machines, n.Name) {
			out[n.Name] = slices.DeleteFunc(out[n.Name],
				func(line string) bool { return strings.HasPrefix(line, "program ") })
		}
		if len(out[n.Name]) == 0 {
			return nil, fmt.Errorf("inventory of %s: it is empty", n.Name)
		}
	}
	return out, nil
}

func newInventory(text string) Inventory {
	var lines Inventory
	var rules ruleset
	for line := range strings.Lines(text) {
		line = strings.Join(strings.Fields(line), " ")
		if rule, ok := strings.CutPrefix(line, "nft"); ok {
			lines = append(lines, rules.next(strings.TrimSpace(rule))...)
		} else if line != "" && !changing.MatchString(line) {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return lines
}

// ruleset filters the output of nft, line by line. It leaves out what other programs may change at
// any time: kube-proxy's tables, the tables called nat, which belong to users of iptables such as
// portmap, the kubelet's chains, which begin with KUBE-, and tables of iptables that have only such
// chains.
type ruleset struct {
	table   string
	depth   int
	printed bool
	// hidden is the depth of the block that is being left out, or 0.
	hidden int
}

var iptablesTable = regexp.MustCompile(`^table ip6? (filter|mangle) `)

// next returns the lines to list for the next line of the output.
func (r *ruleset) next(line string) (out []string) {
	opens, closes := strings.HasSuffix(line, "{"), line == "}"
	if opens {
		r.depth++
		if r.depth == 1 {
			r.table, r.printed = line, false
		}
		words := append(strings.Fields(line), "", "")
		if r.hidden == 0 && (r.depth == 1 && (words[2] == "kube-proxy" || words[2] == "nat") ||
			r.depth == 2 && strings.HasPrefix(words[1], "KUBE-")) {
			r.hidden = r.depth
		}
	}

	iptables := iptablesTable.MatchString(r.table)
	switch {
	case r.hidden != 0, line == "", strings.Contains(line, "KUBE-"), r.depth == 1 && iptables &&
		!r.printed && (opens || closes):
	default:
		if r.depth == 2 && iptables && !r.printed {
			out = append(out, "nft "+r.table)
		}
		r.printed = true
		out = append(out, "nft "+line)
	}

	if closes {
		if r.hidden == r.depth {
			r.hidden = 0
		}
		r.depth--
	}
	return out
}

// changing matches lines that may change by themselves, or may stay after uninstallation
// (docs/how-to/uninstall.md). Such lines are forwarding and the empty qdisc clsact, on which other
// programs may now rely, empty directories of other programs, and systemd's BPF programs.
var changing = regexp.MustCompile(`/(mc_)?forwarding:|^qdisc qdisc clsact |^program sd_|` +
	`^file (/run/wireguard|/opt/cni(/bin)?|/etc/cni(/net\.d)?)$`)

// Traces returns the beginnings of lines that the difference of an installation should have and
// lacks. tc does not list programs attached by tcx, so Traces expects the BPF programs themselves,
// but only on machines, which have their own kernel.
func Traces(lines []string, machine bool) (missing []string) {
	wanted := []string{"rule ", "route ", "link veil0", "nft table inet " + abi.NFTGuardTable,
		"nft table inet " + abi.NFTPodTable, "file " + abi.BPFDir + "/"}
	if machine {
		wanted = append(wanted, "program guard_egress")
	}

	for _, w := range wanted {
		if !slices.ContainsFunc(lines,
			func(line string) bool { return strings.HasPrefix(line, "+ "+w) }) {
			missing = append(missing, w)
		}
	}
	return missing
}

// Difference returns the lines that after has more often than before, with a +, and the lines that
// it has less often, with a -.
func Difference(before, after Inventory) (out []string) {
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
