package preflight

import (
	"fmt"
	"slices"
	"strconv"
)

// spread: several API servers should end connections now and then, so that clients move to one that
// has restarted. One server has nothing to move to, and those without visible flags are not judged.
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
	j.say(Warning, check, fmt.Sprintf("%s: no --goaway-chance, so connections do not come back to an "+
		"API server that has restarted", listed(without)),
		"add --goaway-chance=0.001 to the command in /etc/kubernetes/manifests/kube-apiserver.yaml "+
			"of each control-plane node, one after the other")
}
