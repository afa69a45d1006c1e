// Package firewall finds filters of other programs that packets of pods meet. It reads nftables, of
// which iptables-nft is a part, and only reports whether the older kernel tables of iptables-legacy
// are in use. It changes nothing, and does not evaluate rules.
//
// A Filter drops what pods send by default: Docker, ufw and firewalld have one at the forward hook,
// and an accept of Kubeveil's own nftables does not overrule it. A chain that accepts packets of
// pods' links before it drops all others is reported too. So a Filter is only a warning for the
// operator, and never a reason not to start.
//
// A Judge has any verdict but accept: packets that bypass netfilter would escape it.
//
// Start reading at Foreign and FindJudge.
package firewall
