package preflight

import (
	"fmt"
	"slices"
	"strconv"
)

// spread checks --goaway-chance of the API servers. With several servers, each should occasionally
// close connections, so that clients also move to a server that has restarted. It checks nothing if
// there is only one server, or if the flags are not visible.
func (j *judge) spread() {
	const check = "spread of connections"
	if len(j.f.StaticServers) < 2 {
		return
	}
	var without []string
	for _, s := range j.f.StaticServers {
		if chance, err := strconv.ParseFloat(s.GoAwayChance, 64); err != nil || chance <= 0 {
			without = append(without, s.Pod)
		}
	}
	if len(without) == 0 {
		j.ok(check, "each of %d API servers has --goaway-chance", len(j.f.StaticServers))
		return
	}
	slices.Sort(without)
	j.say(Warning, check, fmt.Sprintf("%s: no --goaway-chance, so clients do not return to an "+
		"API server that has restarted", listed(without)),
		"add --goaway-chance=0.001 to the command in /etc/kubernetes/manifests/kube-apiserver.yaml "+
			"of each control-plane node, one after the other")
}
