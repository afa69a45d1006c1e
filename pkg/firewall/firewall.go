package firewall

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// Filter is a base chain at the forward hook that drops what none of its rules accepts.
type Filter struct {
	// Family is ip, ip6 or inet.
	Family string
	Table  string
	Chain  string
	// Owner is the program that probably made the chain. "" means that it is not known.
	Owner string
}

// owners are programs with such filters. Each is recognised by a table or a chain, and has a remedy
// for the operator.
var owners = []struct {
	name         string
	table, chain string // either identifies it
	remedy       string
}{
	{name: "firewalld", table: "firewalld",
		remedy: "firewall-cmd --permanent --zone=trusted --add-source=RANGE for each range of " +
			"pods and services, then firewall-cmd --reload"},
	{name: "ufw", chain: "-before-forward", remedy: "ufw route allow in on " + links +
		" and out on " + links + ", or DEFAULT_FORWARD_POLICY=\"ACCEPT\" in /etc/default/ufw"},
	{name: "Docker", chain: "DOCKER-USER",
		remedy: "iptables and ip6tables -I DOCKER-USER -i LINK -j ACCEPT, and the same with -o, " +
			"for LINK " + links},
}

// links are the names of the links that must be accepted, as iptables writes them.
const links = abi.PodLinkPrefix + "+ and " + abi.TunnelDevicePrefix + "+"

// String returns a sentence that describes the filter and the remedy.
func (f Filter) String() string {
	by, remedy := "", fmt.Sprintf("accept there what comes by or leaves by %s", links)
	for _, o := range owners {
		if o.name == f.Owner {
			by, remedy = " of "+o.name, o.remedy
		}
	}
	return fmt.Sprintf("the chain %s in nftables table %s %s%s drops forwarded packets that it "+
		"does not accept, so perhaps those of pods: %s",
		f.Chain, f.Family, f.Table, by, remedy)
}

var families = map[nftables.TableFamily]string{
	nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6",
	nftables.TableFamilyINet: "inet",
}

// Foreign returns the filters of other programs in the network namespace of the calling
// thread, in the kernel's order.
func Foreign() ([]Filter, error) {
	// All requests use one socket, because closing a socket delays transactions of nftables.
	c, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return nil, fmt.Errorf("read firewalls: %w", err)
	}
	defer func() { _ = c.CloseLasting() }()
	chains, err := c.ListChains()
	if err != nil {
		return nil, fmt.Errorf("read firewalls: %w", err)
	}

	var found []Filter
	for _, chain := range chains {
		family := families[chain.Table.Family]
		if family == "" || strings.HasPrefix(chain.Table.Name, abi.NFTPrefix) || chain.Hooknum == nil ||
			*chain.Hooknum != *nftables.ChainHookForward {
			continue
		}
		drops := chain.Policy != nil && *chain.Policy == nftables.ChainPolicyDrop
		if !drops {
			rules, err := c.GetRules(chain.Table, chain)
			if err != nil {
				return found, fmt.Errorf("read chain %s of table %s %s: %w", chain.Name, family,
					chain.Table.Name, err)
			}
			drops = len(rules) > 0 && dropsAll(rules[len(rules)-1])
		}
		if drops {
			found = append(found, Filter{Family: family, Table: chain.Table.Name, Chain: chain.Name,
				Owner: owner(chain, chains)})
		}
	}

	return found, nil
}

// dropsAll reports whether a rule drops or rejects every packet that reaches it.
func dropsAll(r *nftables.Rule) bool {
	for _, e := range r.Exprs {
		switch e := e.(type) {
		case *expr.Counter, *expr.Log:
		case *expr.Reject:
			return true
		case *expr.Verdict:
			return e.Kind == expr.VerdictDrop
		default:
			return false
		}
	}
	return false
}

// owner returns the name of the program that probably made a chain, judged by the chain's table and
// the other chains in that table. It returns "" if the program is not known.
func owner(chain *nftables.Chain, all []*nftables.Chain) string {
	for _, o := range owners {
		if o.table != "" && o.table == chain.Table.Name {
			return o.name
		}
		if o.chain != "" && slices.ContainsFunc(all, func(c *nftables.Chain) bool {
			return c.Table.Name == chain.Table.Name && c.Table.Family == chain.Table.Family &&
				strings.HasSuffix(c.Name, o.chain)
		}) {
			return o.name
		}
	}
	return ""
}

// Legacy reports whether the table filter of iptables-legacy is in use. Foreign does not read that
// table. proc is the root of procfs.
func Legacy(proc string) (bool, error) {
	tables, err := legacyTables(proc)
	return slices.ContainsFunc(tables, func(j Judge) bool { return j.Table == "filter" }), err
}

// legacyTables returns the tables of iptables-legacy that are in use.
func legacyTables(proc string) (tables []Judge, err error) {
	for _, f := range []struct{ file, family string }{{"ip_tables_names", "ip"},
		{"ip6_tables_names", "ip6"}} {
		names, err := os.ReadFile(proc + "/net/" + f.file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("look for iptables-legacy: %w", err)
		}
		for _, table := range strings.Fields(string(names)) {
			tables = append(tables, Judge{Family: f.family, Table: table})
		}
	}
	return tables, nil
}
