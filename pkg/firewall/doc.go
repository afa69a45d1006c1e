// Package firewall finds filters of other programs that drop what pods send by
// default: Docker, ufw and firewalld have one at the forward hook, and an accept of
// Kubeveil's own nftables does not overrule it. It reads nftables, of which iptables-nft
// is a part, and only reports whether the older kernel tables of iptables-legacy are in use.
//
// It promises to change nothing. It does not follow rules: a chain that accepts pods'
// links before it drops the rest is reported like one that does not, so what is found is a
// warning for a person and never a reason to refuse a node.
//
// Start reading at Foreign.
package firewall
