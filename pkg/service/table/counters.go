package table

import "fmt"

// Counters are since the map of counters was made, which only another layout of it makes again.
type Counters struct {
	Sockets, Packets Choices
	// SourceRefused is packets of clients that loadBalancerSourceRanges do not admit.
	SourceRefused uint64
	// NotHere is packets that were dropped because under policy Local no backend is on this node,
	// so that a balancer goes to another.
	NotHere uint64
	// NoAddress and NoPort are packets that could not be given a source of this node; NoPort also
	// those of flows that have no room, and of pods for which there is none among the callers.
	NoAddress, NoPort uint64
	// Moved is flows of UDP packets that got another backend because theirs went.
	Moved uint64
}

// Choices is what became of those who asked for a service.
type Choices struct {
	// TCP and UDP is how often a backend was chosen.
	TCP, UDP uint64
	// Refused is how often there was none.
	Refused uint64
	// Unsteady is how often a choice was given up and refused because the
	// service changed each time it was looked at. It should be 0.
	Unsteady uint64
}

// fields are in the order of enum service_count in bpf/lib/service/count.h.
func (c *Counters) fields() []*uint64 {
	return []*uint64{
		&c.Sockets.TCP, &c.Sockets.UDP, &c.Sockets.Refused, &c.Sockets.Unsteady,
		&c.Packets.TCP, &c.Packets.UDP, &c.Packets.Refused, &c.NotHere, &c.SourceRefused,
		&c.Packets.Unsteady,
		&c.NoAddress, &c.NoPort, &c.Moved,
	}
}

// Counters reads what the programs counted.
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

// Remembered counts the entries of the maps that forget what was not used for long. It walks them
// all, about a millisecond for each ten thousand; for a metric once a minute is enough.
func (t *Table) Remembered() (Memory, error) {
	var m Memory
	for name, n := range map[string]*uint32{mapAffinity: &m.Clients, mapReplies: &m.Replies,
		mapSends: &m.Sends, mapFlows: &m.Flows} {
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
