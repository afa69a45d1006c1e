package flow

import (
	"cmp"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// Kept is the maximum number of connections of each class, and of alarms, on a page.
const Kept = 2000

// kept collects at most Kept connections of each class. Make it with newKept.
type kept struct {
	telemetry.Flows
	alarms  []telemetry.Flow
	byClass map[telemetry.FlowClass][]telemetry.Flow
}

func newKept() *kept {
	k := &kept{byClass: map[telemetry.FlowClass][]telemetry.Flow{}}
	k.Count, k.LeftOut = map[telemetry.FlowClass]int{}, map[telemetry.FlowClass]int{}
	for _, c := range telemetry.FlowClasses() {
		k.Count[c] = 0
	}
	return k
}

// add counts a connection. It keeps the connection if fewer than Kept of its class, or Kept alarms,
// are kept.
func (k *kept) add(f telemetry.Flow) {
	k.Count[f.Class]++
	list := k.byClass[f.Class]
	if f.Alarm {
		k.Alarms++
		list = k.alarms
	}
	if len(list) >= Kept {
		k.LeftOut[f.Class]++
		return
	}
	if list = append(list, f); f.Alarm {
		k.alarms = list
	} else {
		k.byClass[f.Class] = list
	}
}

// compare orders connections by the client's pod, then by the addresses and ports.
func compare(a, b telemetry.Flow) int {
	return cmp.Or(cmp.Compare(a.ClientPod, b.ClientPod), a.Client.Compare(b.Client),
		a.Server.Compare(b.Server), cmp.Compare(a.ServerPort, b.ServerPort),
		cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.ClientPort, b.ClientPort))
}

// all returns the counts and the kept connections: alarms first, then sorted by class.
func (k *kept) all() telemetry.Flows {
	slices.SortFunc(k.alarms, compare)
	k.Flows.Flows = slices.Concat([]telemetry.Flow{}, k.alarms)
	for _, c := range telemetry.FlowClasses() {
		slices.SortFunc(k.byClass[c], compare)
		k.Flows.Flows = append(k.Flows.Flows, k.byClass[c]...)
	}
	return k.Flows
}
