package proxy

import (
	"math/rand/v2"
	"sync/atomic"
	"time"
)

const (
	// leastPing and leastConnect are the pauses of probes in a small cluster.
	leastPing, leastConnect = 250 * time.Millisecond, 500 * time.Millisecond
	// mostPings and mostConnects bound what a server gets from all nodes together, each second.
	mostPings, mostConnects = 4000, 2000
)

// pace decides the pauses of probes by the number of nodes that probe. The zero value has the
// pauses of a small cluster. All methods may be called at any time.
type pace struct{ nodes atomic.Int64 }

// per returns the pause at which all nodes together do something rate times a second.
func (p *pace) per(rate int64, least time.Duration) time.Duration {
	return max(least, time.Duration(p.nodes.Load())*time.Second/time.Duration(rate))
}

// ping returns the pause between two pings.
func (p *pace) ping() time.Duration { return p.per(mostPings, leastPing) }

// phase returns the time from the first ping of a connection to the second. It is random: when a
// server comes back, all nodes connect to it at once and must not ping in step.
func (p *pace) phase() time.Duration { return rand.N(p.ping()) }

// connect returns the pause after a failed connect, at random half to three halves of its mean: the
// nodes that wait for a server must not connect in step.
func (p *pace) connect() time.Duration {
	mean := p.per(mostConnects, leastConnect)
	return mean/2 + rand.N(mean)
}
