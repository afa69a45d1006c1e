package preflight

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/cluster"
)

// network holds the objects by which another network plugin is recognised.
type network struct {
	name string
	// daemons are names of DaemonSets, or prefixes of them; groups are suffixes of API groups;
	// annotations are prefixes of keys on Nodes.
	daemons, groups, annotations []string
}

var networks = []network{
	{"Antrea", []string{"antrea-agent"}, []string{"antrea.io"}, []string{"node.antrea.io/"}},
	{"AWS VPC CNI", []string{"aws-node"}, []string{"vpcresources.k8s.aws", "crd.k8s.amazonaws.com"},
		nil},
	{"Azure CNI", []string{"azure-cni", "azure-cns"}, nil, nil},
	{"Calico", []string{"calico-node", "canal"},
		[]string{"projectcalico.org", "operator.tigera.io"}, []string{"projectcalico.org/"}},
	{"Cilium", []string{"cilium", "anetd"}, []string{"cilium.io"},
		[]string{"network.cilium.io/", "io.cilium.network"}},
	{"Flannel", []string{"kube-flannel", "flannel"}, nil, []string{"flannel.alpha.coreos.com/"}},
	{"kindnet", []string{"kindnet"}, nil, nil},
	{"Kube-OVN", []string{"kube-ovn-cni"}, []string{"kubeovn.io"}, []string{"ovn.kubernetes.io/"}},
	{"kube-router", []string{"kube-router"}, nil, []string{"kube-router.io/"}},
	{"OVN-Kubernetes", []string{"ovnkube"}, []string{"k8s.ovn.org"}, []string{"k8s.ovn.org/"}},
	{"Terway", []string{"terway"}, []string{"network.alibabacloud.com"}, nil},
	{"Weave Net", []string{"weave-net"}, nil, nil},
}

const removeIt = "remove it as its documentation says, then delete its file below /etc/cni/net.d " +
	"and its interfaces on every node (a reboot deletes interfaces): a node can have only one " +
	"network plugin"

// otherCNI checks for other network plugins. A plugin that runs is an error; its traces are a
// warning.
func (j *judge) otherCNI() {
	const check = "other CNI"
	if j.unreadable("DaemonSets") {
		return
	}

	found := false
	for _, n := range networks {
		running := matching(j.f.DaemonSets, func(ds string) bool {
			_, name, _ := strings.Cut(ds, "/")
			return begins(name, n.daemons)
		})
		if len(running) > 0 {
			found = true
			j.say(Error, check, fmt.Sprintf("%s is installed: DaemonSet %s", n.name,
				listed(running)), removeIt)
			continue
		}

		var traces []string
		groups := matching(j.f.Groups, func(g string) bool {
			return slices.ContainsFunc(n.groups, func(end string) bool {
				return g == end || strings.HasSuffix(g, "."+end)
			})
		})
		if len(groups) > 0 {
			traces = append(traces, "custom resources of "+listed(groups))
		}

		var nodes []string
		for _, node := range j.f.Nodes {
			if slices.ContainsFunc(node.Annotations,
				func(key string) bool { return begins(key, n.annotations) }) {
				nodes = append(nodes, node.Name)
			}
		}

		if len(nodes) > 0 {
			traces = append(traces, "annotations on "+listed(nodes))
		}

		if len(traces) > 0 {
			found = true
			j.say(Warning, check, fmt.Sprintf("%s was installed: there are %s", n.name,
				strings.Join(traces, " and ")),
				"delete its remaining files below /etc/cni/net.d and its interfaces on every node "+
					"(a reboot deletes interfaces)")
		}
	}

	if m := matching(j.f.DaemonSets, func(ds string) bool {
		return strings.Contains(ds, "/kube-multus")
	}); len(m) > 0 {
		found = true
		j.say(Warning, check, "Multus is installed: DaemonSet "+listed(m),
			"make 05-kubeveil.conflist its default network; Kubeveil does not encrypt "+
				"other networks")
	}

	if !found {
		j.ok(check, "none of the well-known plugins")
	}
}

func matching(names []string, ok func(string) bool) []string {
	var out []string
	for _, n := range names {
		if ok(n) {
			out = append(out, n)
		}
	}
	return out
}

func begins(s string, with []string) bool {
	return slices.ContainsFunc(with, func(w string) bool { return strings.HasPrefix(s, w) })
}

// strangers reports pods and nodes that use another network plugin, also an unknown one.
func (j *judge) strangers() {
	const check = "other CNI"
	if j.cfgErr == nil {
		var outside []string
		for name, a := range j.f.PodAddrs {
			if !cluster.InRanges(j.cfg.ClusterRanges, a) {
				outside = append(outside, fmt.Sprintf("%s (%s)", name, a))
			}
		}
		if len(outside) > 0 {
			j.say(Error, check, fmt.Sprintf("pods have addresses outside of the cluster ranges: %s",
				listed(outside)),
				"Kubeveil does not encrypt packets of such pods: correct the ranges, or delete "+
					"these pods after you removed their network")
		}
	}

	if len(j.f.Daemons) > 0 {
		return // Kubeveil itself makes nodes Ready and assigns pods their addresses
	}

	var ready []string
	for _, n := range j.chosen() {
		if n.Ready {
			ready = append(ready, n.Name)
		}
	}

	if len(ready) > 0 {
		j.say(Warning, check, fmt.Sprintf("%s: Ready before Kubeveil is installed, so a CNI "+
			"configuration exists", listed(ready)),
			"check /etc/cni/net.d on each: remove files that sort before 05-kubeveil.conflist; "+
				"veild does not start while one exists")
	}

	if len(j.f.PodAddrs) > 0 {
		j.say(Warning, check, fmt.Sprintf("%d pods or more have their network from another plugin",
			len(j.f.PodAddrs)), "delete them after the installation, so that Kubeveil connects "+
			"their replacements, or reboot the nodes")
	}
}
