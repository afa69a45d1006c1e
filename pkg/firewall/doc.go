// Package firewall finds filters of other programs that drop what pods send by
// default: Docker, ufw and firewalld have one at the forward hook, and an accept of
// Kubeveil's own nftables does not overrule it. It reads nftables, of which iptables-nft
// is a part, and only reports whether the older kernel tables of iptables-legacy are in use.
//
// It changes nothing. It does not evaluate rules: a chain that accepts packets of pods' links
// before it drops all others is reported too. So a Filter is only a warning for the operator, and
// never a reason not to start.
//
// Start reading at Foreign.
package firewall
