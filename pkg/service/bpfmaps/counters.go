package bpfmaps

import "fmt"

// Counters counts since the map of counters was created. The map is only created again if its
// layout changes.
type Counters struct {
	Sockets, Packets Choices
	// SourceRefused counts packets of clients that loadBalancerSourceRanges does not admit.
	SourceRefused uint64
	// NotHere counts packets that were dropped because the policy is Local and no backend is on
	// this node. So a load balancer chooses another node.
	NotHere uint64
	// NoAddress and NoPort count packets without a source address or port for SNAT. NoPort also
	// counts flows without room in the flow table or among the pod clients.
	NoAddress, NoPort uint64
	// Moved counts UDP flows that got another backend because theirs is gone.
	Moved uint64
}

// Choices counts the results of choices of a backend.
type Choices struct {
	// TCP and UDP count how often a backend was chosen.
	TCP, UDP uint64
	// Refused counts how often the service had none.
	Refused uint64
	// Unsteady counts how often a choice was given up and refused because the frontend changed at
	// each look-up. It should be 0.
	Unsteady uint64
}

// fields returns the counters in the order of enum service_count in bpf/lib/service/count.h.
func (c *Counters) fields() []*uint64 {
	return []*uint64{
		&c.Sockets.TCP, &c.Sockets.UDP, &c.Sockets.Refused, &c.Sockets.Unsteady,
		&c.Packets.TCP, &c.Packets.UDP, &c.Packets.Refused, &c.NotHere, &c.SourceRefused,
		&c.Packets.Unsteady,
		&c.NoAddress, &c.NoPort, &c.Moved,
	}
}

// Counters returns what the programs counted.
func (t *Table) Counters() (Counters, error) {
	var c Counters
	for i, sum := range c.fields() {
		var perCPU []uint64
		if err := t.maps[mapCounts].Lookup(uint32(i), &perCPU); err != nil {
			return Counters{}, fmt.Errorf("read counter %d of %s: %w", i, mapCounts, err)
		}
		for _, n := range perCPU {
			*sum += n
		}
	}
	return c, nil
}

// Remembered counts the entries of the LRU maps. It walks all of them, about a millisecond for each
// ten thousand, so once a minute is enough for a metric.
func (t *Table) Remembered() (Memory, error) {
	var m Memory
	for name, n := range map[string]*uint32{mapAffinity: &m.Clients, mapReplies: &m.Replies,
		mapSends: &m.Sends, MapFlows: &m.Flows} {
		if t.maps[name] == nil {
			continue
		}
		err := eachRaw(t.maps[name], func(_, _ []byte) error {
			*n++
			return nil
		})
		if err != nil {
			return Memory{}, fmt.Errorf("count %s: %w", name, err)
		}
	}
	return m, nil
}
