package network

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/e2e/cluster/network/keys"
	"github.com/kubeveil/kubeveil/e2e/cluster/network/nodes"
	"github.com/kubeveil/kubeveil/e2e/cluster/network/pods"
	"github.com/kubeveil/kubeveil/e2e/cluster/network/servers"
	"github.com/kubeveil/kubeveil/e2e/cluster/network/session"
)

// Cases returns all cases in the order in which they run: the reference network, the installation,
// cases that do not disturb the cluster, cases that do, and the uninstallation.
func Cases() []session.Case {
	return slices.Concat(first(), traffic(), daemons(), machines(), last())
}

// lots are the needs of cases that change machines or daemons.
var lots = []session.Need{session.Machines, session.TwoWorkers}

func first() []session.Case {
	return []session.Case{
		{Name: "reference-network", About: "the oracle sees the plaintext of a network that does " +
			"not encrypt", Needs: []session.Need{session.Fresh, session.TwoWorkers},
			Limit: 6 * time.Minute, Breaks: true, Run: nodes.ClearNetwork},
		{Name: "install", About: "nodes become Ready once the manifests are applied, first in " +
			"part and then all", Needs: []session.Need{session.Fresh}, Limit: 10 * time.Minute,
			Always: true, Breaks: true, Run: nodes.Install},
	}
}

func traffic() []session.Case {
	two := []session.Need{session.TwoWorkers}

	return []session.Case{
		{Name: "pod-to-pod", About: "pods on two nodes talk, both ways", Needs: two,
			Limit: 5 * time.Minute, Run: pods.PodToPod},
		{Name: "pod-to-service", About: "a service is reached by its address", Needs: two,
			Limit: 3 * time.Minute, Run: pods.PodToService},
		{Name: "names", About: "the cluster's DNS answers, over the tunnel too", Needs: two,
			Limit: 5 * time.Minute, Run: pods.Names},
		{Name: "host-port", About: "a pod reaches a host port of another node", Needs: two,
			Limit: 3 * time.Minute, Run: pods.PodToHostPort},
		{Name: "node-port", About: "a node port is reached from a pod, from a node and " +
			"from outside", Needs: two, Limit: 3 * time.Minute, Run: pods.NodePort},
		{Name: "node-to-pod", About: "a process of a node talks to pods of another, and pods to it",
			Needs: two, Limit: 3 * time.Minute, Run: pods.NodeToPod},
		{Name: "kubernetes-service", About: "a pod reaches the API server by its service",
			Needs: two, Limit: 3 * time.Minute, Run: pods.KubernetesService},
		{Name: "egress", About: "a pod reaches a host outside, with its node's address",
			Needs: []session.Need{session.TwoWorkers,
				session.Outside}, Limit: 3 * time.Minute, Run: pods.Egress},
		{Name: "webhook", About: "the API server calls a webhook in a pod", Needs: two,
			Limit: 4 * time.Minute, Run: pods.Webhook},
		{Name: "aggregated-api", About: "the API server calls a pod for an API that it serves",
			Needs: two, Limit: 4 * time.Minute, Run: pods.Aggregated},
		{Name: "idle-pods", About: "idle pods do not count as spoofers, and none of their " +
			"packets is blocked", Needs: two, Limit: 16 * time.Minute, Run: pods.PodsIdle,
			Long: "it waits ten minutes", Beyond: "it waits ten minutes"},
		{Name: "stolen-token", About: "a node's token writes no other node's VeilNode", Needs: two,
			Limit: 2 * time.Minute, Run: pods.StolenToken},
	}
}

func daemons() []session.Case {
	return []session.Case{
		{Name: "daemon-rolled", About: "veild is rolled under load and no flow is lost",
			Needs: []session.Need{session.TwoWorkers}, Limit: 8 * time.Minute,
			Run: nodes.DaemonRolled},
		{Name: "policy-rolled", About: "veild is rolled with network policies in force; " +
			"forbidden connections are never answered; veilctl shows drops, flows, a try and a " +
			"report of all nodes", Needs: lots, Limit: 20 * time.Minute,
			Beyond: "it rolls daemons three times", Run: pods.PolicyRolled},
		{Name: "key-replaced", About: "a node gets another key while flows run", Needs: lots,
			Limit: 6 * time.Minute, Beyond: "it restarts daemons", Run: keys.Replaced},
		{Name: "clock-set-back", About: "the clock of a node was ahead and is set back: its pods " +
			"reach others", Needs: lots, Limit: 6 * time.Minute, Beyond: "it changes a node's clock",
			Run: keys.ClockSetBack},
		{Name: "mtu-changed", About: "the MTU is changed in the ConfigMap while flows run",
			Needs: lots, Limit: 10 * time.Minute, Beyond: "it restarts daemons",
			Run: nodes.MTUChanged},
		{Name: "unguarded-link", About: "a link that Linux before 6.6 cannot guard at egress is " +
			"reported, and its node takes no new pods", Needs: lots, Limit: 8 * time.Minute,
			Beyond: "it waits for a kubelet that tries again", Run: nodes.UnguardedLink},
	}
}

func machines() []session.Case {
	return []session.Case{
		{Name: "api-server-away", About: "pods are killed and come back while the API server is " +
			"away for a moment", Needs: lots, Limit: 8 * time.Minute,
			Beyond: "it waits for pods that are killed", Run: servers.APIAway},
		{Name: "api-server-away-long", About: "the same for five minutes", Needs: lots,
			Limit: 13 * time.Minute, Run: servers.APIAwayForLong, Long: "it waits five minutes",
			Beyond: "it waits five minutes"},
		{Name: "reboot", About: "a node loses its power; its pods come back and talk", Needs: lots,
			Limit: 10 * time.Minute, Beyond: "it waits for a machine", Run: nodes.Reboot},
		{Name: "join-and-leave", About: "a node without WireGuard in its kernel joins, its pods " +
			"talk, veil-wg is rolled and no flow is lost, and it leaves", Needs: lots,
			Limit:  16 * time.Minute,
			Beyond: "it waits for a machine", Run: nodes.JoinAndLeave},
		{Name: "api-server-untranslated", About: "the control of the next case: without " +
			"services.apiFrontends, a node becomes NotReady", Needs: lots,
			Limit: 16 * time.Minute, Run: servers.ServerLostUntranslated, Long: watchesNodes,
			Beyond: watchesNodes},
		{Name: "api-server-lost", About: "one of two API servers loses its power, or stops, " +
			"under kubelets and pods, and no node becomes NotReady", Needs: lots,
			Limit: 20 * time.Minute, Run: servers.ServerLost, Long: watchesNodes,
			Beyond: watchesNodes},
	}
}

// watchesNodes is the reason why the cases of lost API servers are left to the full run.
const watchesNodes = "it watches nodes for minutes"

func last() []session.Case {
	fresh := []session.Need{session.Fresh, session.TwoWorkers}
	return []session.Case{
		{Name: "uninstall", About: "nodes are as before the installation", Needs: fresh,
			Limit: 8 * time.Minute, Run: nodes.Uninstall},
		{Name: "other-directories", About: "containerd looks for CNI in the directories of k3s: " +
			"pods talk, and nodes are then as before", Needs: fresh, Limit: 16 * time.Minute,
			Beyond: "it installs a second time", Run: nodes.Directories},
		{Name: "reinstall", About: "the daemons applied first and their rights later make nodes " +
			"Ready; pods talk again", Needs: fresh, Limit: 12 * time.Minute,
			Beyond: "it installs a second time", Run: nodes.Reinstall},
	}
}

// List prints a line per case with its name and description.
func List(w io.Writer, cases []session.Case) {
	for _, c := range cases {
		long := ""
		if c.Long != "" {
			long = " (full run: " + c.Long + ")"
		}
		fmt.Fprintf(w, "%-26s %s%s\n", c.Name, c.About, long)
	}
}
