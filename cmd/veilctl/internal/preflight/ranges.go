package preflight

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/cluster"
)

// ranges reports the ranges that veild would use, or the error that it would return.
func (j *judge) ranges() {
	const check = "ranges"
	if j.unreadable("kubeadm-config") {
		return
	}

	if j.cfgErr != nil {
		found := fmt.Sprintf("veild would not start with the configuration of %s: %s",
			j.f.ConfigFrom, oneLine(j.cfgErr))
		do := "correct the configuration, and repeat the check"
		if j.f.Kubeadm == nil && j.cfg.KubeadmConfig != "" {
			found = "kube-system has no ConfigMap kubeadm-config, from which veild would learn " +
				"the ranges of pods and services"
			do = "write clusterRanges and serviceRanges into " +
				"the ConfigMap kubeveil instead " +
				"of kubeadmConfig, and check its veild.yaml with --config FILE"
		} else if len(j.cfg.ClusterRanges) == 0 && j.cfg.KubeadmConfig != "" {
			found = "the ClusterConfiguration in kubeadm-config has no " +
				"networking.podSubnet: this " +
				"cluster was created without a pod network"
			do = "create it with kubeadm init --pod-network-cidr=…, or give the controller " +
				"manager --allocate-node-cidrs and --cluster-cidr, write clusterRanges into " +
				"the ConfigMap kubeveil and check its veild.yaml with --config FILE"
		}
		j.say(Error, check, found, do)
		return
	}

	j.ok(check, "pods %s, services %s, by the configuration of %s", prefixes(j.cfg.ClusterRanges),
		prefixes(j.cfg.ServiceRanges), j.f.ConfigFrom)
	for _, a := range j.f.ServiceAddrs {
		if !cluster.InRanges(j.cfg.ServiceRanges, a) {
			j.say(Error, check, fmt.Sprintf("the service kubernetes has the address %s, which is "+
				"in none of the service ranges", a),
				"correct the service ranges: they must hold every service "+
					"(--service-cluster-ip-range of the API server)")
		}
	}

	if cidr := j.f.Controller.ClusterCIDR; cidr != "" {
		for _, text := range strings.Split(cidr, ",") {
			if p, err := netip.ParsePrefix(strings.TrimSpace(text)); err == nil &&
				!cluster.Covered(j.cfg.ClusterRanges, p.Masked()) {
				j.say(Error, check, fmt.Sprintf("the controller manager allocates pod CIDRs from "+
					"%s, which is not in the cluster ranges", p),
					"make --cluster-cidr and the cluster ranges (podSubnet) agree")
			}
		}
	}
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

func prefixes(list []netip.Prefix) string {
	var out []string
	for _, p := range list {
		out = append(out, p.String())
	}
	return strings.Join(out, " and ")
}

// podCIDRs checks that every node has a pod CIDR of each family.
func (j *judge) podCIDRs() {
	const check = "pod CIDRs"
	if j.unreadable("nodes") {
		return
	}

	var none, part []string
	want := cluster.Node{PodPrefixes: j.cfg.ClusterRanges}.PodFamilies()
	for _, n := range j.f.Nodes {
		switch have := (cluster.Node{PodPrefixes: n.PodCIDRs}).PodFamilies(); {
		case len(n.PodCIDRs) == 0:
			none = append(none, n.Name)
		case j.cfgErr == nil && have != want:
			part = append(part, n.Name)
		}
	}

	if len(part) > 0 {
		j.say(Error, check, fmt.Sprintf("the pod CIDRs of %s and the cluster ranges (%s) have "+
			"different IP families", listed(part), prefixes(j.cfg.ClusterRanges)),
			"give the controller manager a --cluster-cidr of each family, or configure only the "+
				"families that nodes have; then let the Node join again, because its CIDRs "+
				"never change")
	}

	const fix = "kube-controller-manager needs --allocate-node-cidrs=true and --cluster-cidr; " +
		"kubeadm sets both when it has a podSubnet"
	switch {
	case len(j.f.Nodes) == 0:
		j.say(Warning, check, "the cluster has no node yet", "let a node join it")
	case len(none) == 0 && len(part) == 0:
		j.ok(check, "each of %d nodes has one", len(j.f.Nodes))
	case len(none) == 0:
	case j.f.Controller.Allocates:
		j.say(Warning, check, fmt.Sprintf("%s: none yet; the controller manager allocates them "+
			"(--allocate-node-cidrs)", listed(none)),
			"wait; if they get none, read its log: kubectl -n kube-system logs -l "+
				"component=kube-controller-manager")
	case j.f.Controller.Seen:
		j.say(Error, check, listed(none)+
			": none, and the controller manager does not allocate them", fix)
	case len(none) < len(j.f.Nodes):
		j.say(Error, check, fmt.Sprintf("%s: none, although other nodes have one", listed(none)),
			"check in the controller manager's log whether the cluster range is used up; "+fix)
	default:
		j.say(Error, check, "no node has one", fix)
	}
}

// overlaps reports the Nodes and addresses that a veild would refuse.
func (j *judge) overlaps() {
	const check = "overlaps"
	if j.unreadable("nodes") || j.cfgErr != nil {
		return
	}

	state := cluster.State{Revision: 1, Synced: true, APIServers: j.f.APIServers}
	for _, n := range j.f.Nodes {
		state.Nodes = append(state.Nodes, cluster.Node{Name: n.Name, Created: n.Created,
			ControlPlane: n.ControlPlane, Addresses: n.Addresses, PodPrefixes: n.PodCIDRs})
	}

	_, refused := cluster.Resolve(j.cfg.Rules(nil), state, nil)
	for _, r := range refused {
		found, do, _ := strings.Cut(r.Reason, "; ")
		if do == "" {
			do = "correct the Node; until then no tunnel leads to it"
		}
		j.say(Error, check, fmt.Sprintf("node %s: %s", r.Node, found), do)
	}

	for _, a := range j.f.APIServers {
		if cluster.InRanges(j.cfg.ClusterRanges, a) || cluster.InRanges(j.cfg.ServiceRanges, a) {
			j.say(Error, check, fmt.Sprintf("the API server has the address %s, which is in the "+
				"ranges of pods and services", a),
				"choose ranges that hold no address of the network that the nodes are on")
			refused = append(refused, cluster.Refusal{})
		}
	}

	if len(refused) == 0 {
		j.ok(check, "none among pod CIDRs, services, node addresses and API servers")
	}
}

// nodeRanges checks that nodeRanges is set. It bounds the addresses that a kubelet may report for
// its node.
func (j *judge) nodeRanges() {
	if j.cfgErr != nil || len(j.f.Nodes) == 0 {
		return
	}
	if len(j.cfg.NodeRanges) > 0 {
		// overlaps reports addresses outside of them.
		j.ok("node ranges", "%s", prefixes(j.cfg.NodeRanges))
		return
	}
	var addrs []string
	for _, n := range j.f.Nodes {
		for _, a := range n.Addresses {
			addrs = append(addrs, a.String())
		}
	}
	j.say(Warning, "node ranges", "nodeRanges is not set: an attacker on a node could claim any "+
		"address, and receive the packets that pods send to it",
		fmt.Sprintf("set it in the ConfigMap kubeveil to the networks of your nodes, "+
			"whose addresses are %s", listed(addrs)))
}

// mtu checks the underlay's MTU. Before veild runs, it is known only if the configuration sets it.
func (j *judge) mtu() {
	const check = "MTU"
	if j.cfgErr != nil {
		return // the configuration is malformed, which ranges reports
	}

	if j.cfg.MTU > 0 {
		j.ok(check, "underlay %d by the configuration", j.cfg.MTU)
		return
	}

	least, most, unknown := 0, 0, 0
	families := j.cfg.Families()
	var small []string
	for _, n := range j.f.Nodes {
		if n.MTU == 0 {
			unknown++
			continue
		}
		if least == 0 || n.MTU < least {
			least = n.MTU
		}
		most = max(most, n.MTU)
		outer6 := !(cluster.Node{Addresses: n.Addresses}).AddressFamilies().V4
		if _, err := cluster.TunnelMTU(n.MTU, outer6, families); err != nil {
			small = append(small, fmt.Sprintf("node %s: %v", n.Name, err))
		}
	}

	need := cluster.MinUnderlayMTU(false, families)
	switch {
	case len(small) > 0:
		j.say(Error, check, strings.Join(small, "; "),
			"raise the MTU of the network between nodes, or use IPv4 only for pods")
	case unknown == len(j.f.Nodes):
		j.ok(check, "not known here; veild reads it from each node's interface, which needs at "+
			"least %d (%s checks it on the node)", need, "`veild check`")
	case least == most:
		j.ok(check, "underlay %d on %d nodes", least, len(j.f.Nodes)-unknown)
	default:
		j.say(Warning, check, fmt.Sprintf("the MTU of the underlay differs between nodes, %d to %d",
			least, most), "nothing, if that is intended, because veild probes the path to each "+
			"peer; otherwise set the same MTU on all nodes")
	}
}
