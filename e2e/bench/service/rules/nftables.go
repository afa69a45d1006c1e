package rules

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"io"
	"slices"
	"strings"
)

// table is the name of kube-proxy's table in commands.
const table = "ip kube-proxy"

// nftBase are the tables, sets and chains that do not depend on services, in the order of
// setupNFTables. The table is deleted first, so that the rules may be loaded again.
var nftBase = []string{
	"add table " + table + ` { comment "rules for kube-proxy" ; }`,
	"delete table " + table,
	"add table " + table + ` { comment "rules for kube-proxy" ; }`,
	"add set " + table + " cluster-ips { type ipv4_addr ; }",
	"add set " + table + " nodeport-ips { type ipv4_addr ; }",
	"add set " + table + " hairpin-connections { type ipv4_addr . ipv4_addr . inet_proto . " +
		"inet_service ; }",
	"add map " + table + " firewall-ips { type ipv4_addr . inet_proto . inet_service : verdict ; }",
	"add map " + table + " no-endpoint-nodeports { type inet_proto . inet_service : verdict ; }",
	"add map " + table + " no-endpoint-services { type ipv4_addr . inet_proto . inet_service : " +
		"verdict ; }",
	"add map " + table + " service-ips { type ipv4_addr . inet_proto . inet_service : verdict ; }",
	"add map " + table + " service-nodeports { type inet_proto . inet_service : verdict ; }",
	"add chain " + table + " cluster-ips-check",
	"add chain " + table + " filter-prerouting-pre-dnat { type filter hook prerouting " +
		"priority -110 ; }",
	"add chain " + table + " filter-output-pre-dnat { type filter hook output priority -110 ; }",
	"add chain " + table + " filter-forward { type filter hook forward priority 0 ; }",
	"add chain " + table + " filter-input { type filter hook input priority 0 ; }",
	"add chain " + table + " filter-output { type filter hook output priority 0 ; }",
	"add chain " + table + " firewall-check",
	"add chain " + table + " masquerading",
	"add chain " + table + " nat-output { type nat hook output priority -100 ; }",
	"add chain " + table + " nat-postrouting { type nat hook postrouting priority 100 ; }",
	"add chain " + table + " nat-prerouting { type nat hook prerouting priority -100 ; }",
	"add chain " + table + " nodeport-endpoints-check",
	"add chain " + table + " reject-chain",
	"add chain " + table + " services",
	"add chain " + table + " service-endpoints-check",
	"add rule " + table + " cluster-ips-check ip daddr @cluster-ips reject",
	"add rule " + table + " filter-prerouting-pre-dnat ct state new jump firewall-check",
	"add rule " + table + " filter-output-pre-dnat ct state new jump firewall-check",
	"add rule " + table + " filter-forward ct state new jump service-endpoints-check",
	"add rule " + table + " filter-forward ct state new jump cluster-ips-check",
	"add rule " + table + " filter-input ct state new jump nodeport-endpoints-check",
	"add rule " + table + " filter-input ct state new jump service-endpoints-check",
	"add rule " + table + " filter-output ct state new jump service-endpoints-check",
	"add rule " + table + " filter-output ct state new jump cluster-ips-check",
	"add rule " + table + " firewall-check ip daddr . meta l4proto . th dport vmap @firewall-ips",
	"add rule " + table + " masquerading mark and " + mark + " != 0 mark set mark xor " + mark +
		" masquerade fully-random",
	"add rule " + table + " masquerading ct status dnat ip saddr . ip daddr . meta l4proto . th " +
		"dport @hairpin-connections masquerade fully-random",
	"add rule " + table + " nat-output jump services",
	"add rule " + table + " nat-postrouting jump masquerading",
	"add rule " + table + " nat-prerouting jump services",
	"add rule " + table + " nodeport-endpoints-check ip daddr @nodeport-ips meta l4proto . th " +
		"dport vmap @no-endpoint-nodeports",
	"add rule " + table + " reject-chain reject",
	"add rule " + table + " service-endpoints-check ip daddr . meta l4proto . th dport vmap " +
		"@no-endpoint-services",
}

// NFTables writes the rules for nft -f.
func NFTables(w io.Writer, n Node, services []Service) error {
	p := &printer{w: w}
	for _, l := range nftBase {
		p.line("%s", l)
	}

	p.line("add rule %s cluster-ips-check ip daddr { %s } drop", table, n.Services)
	p.line("add rule %s services ip daddr @cluster-ips ip saddr != %s mark set mark or %s", table,
		n.Pods, mark)
	p.line("add rule %s services ip daddr . meta l4proto . th dport vmap @service-ips", table)
	p.line("add rule %s services ip daddr @nodeport-ips meta l4proto . th dport vmap "+
		"@service-nodeports", table)

	var clusterIPs, serviceIPs, nodeIPs []string
	for _, a := range n.Addrs {
		nodeIPs = append(nodeIPs, a.String())
	}

	for _, s := range services {
		s.chains(p)
		base := nftBaseName(s)
		clusterIPs = append(clusterIPs, s.ClusterIP.String())
		serviceIPs = append(serviceIPs, fmt.Sprintf("%s . tcp . %d : goto service-%s", s.ClusterIP,
			s.Number, base))
		if s.External.IsValid() {
			serviceIPs = append(serviceIPs, fmt.Sprintf("%s . tcp . %d : goto external-%s",
				s.External, s.Number, base))
		}
	}

	p.elements("nodeport-ips", nodeIPs)
	p.elements("cluster-ips", clusterIPs)
	p.elements("service-ips", serviceIPs)
	return p.err
}

// chains writes the chains of a service.
func (s Service) chains(p *printer) {
	base := nftBaseName(s)
	p.line("add chain %s service-%s", table, base)
	p.line("add rule %s service-%s %s", table, base, s.choice())
	if s.External.IsValid() {
		p.line("add chain %s external-%s", table, base)
		p.line("add rule %s external-%s mark set mark or %s", table, base, mark)
		p.line("add rule %s external-%s goto service-%s", table, base, base)
	}
}

// choice is the rule that takes a backend (writeServiceToEndpointDNATs). Idle services have their
// first one in it instead of a map: the kernel takes minutes to find names for tens of thousands of
// anonymous maps, and no packet would see them.
func (s Service) choice() string {
	if s.Idle {
		return fmt.Sprintf("meta l4proto tcp dnat to %s:%d", s.Backends[0], s.Target)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "meta l4proto tcp dnat ip addr . port to numgen random mod %d map { ",
		len(s.Backends))
	for i, a := range s.Backends {
		if i > 0 {
			b.WriteString(" , ")
		}
		fmt.Fprintf(&b, "%d : %s . %d", i, a, s.Target)
	}
	b.WriteString(" }")
	return b.String()
}

// NFTablesChange writes what kube-proxy does when the endpoints of one service changed: its chain
// is filled again, in one transaction.
func NFTablesChange(w io.Writer, s Service) error {
	p := &printer{w: w}
	base := nftBaseName(s)
	p.line("add chain %s service-%s", table, base)
	p.line("flush chain %s service-%s", table, base)
	p.line("add rule %s service-%s %s", table, base, s.choice())
	return p.err
}

// elements adds elements, a thousand to a command.
func (p *printer) elements(set string, all []string) {
	for chunk := range slices.Chunk(all, 1000) {
		p.line("add element %s %s { %s }", table, set, strings.Join(chunk, ", "))
	}
}

// nftBaseName is the name of a service's chains without what they are for
// (servicePortChainNameBase, hashAndTruncate); the names of our services are too short to be cut
// off.
func nftBaseName(s Service) string {
	name := s.Namespace + "/" + s.Name + "/tcp/" + s.Port
	return base32Sum(name)[:8] + "-" + name
}

func base32Sum(text string) string {
	sum := sha256.Sum256([]byte(text))
	return base32.StdEncoding.EncodeToString(sum[:])
}
