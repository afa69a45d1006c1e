package prober

import (
	"math/rand/v2"
	"sync/atomic"
	"time"
)

const (
	// LeastPing, leastConnect and leastReady are the pauses of probes in a small cluster.
	LeastPing, leastConnect = 250 * time.Millisecond, 500 * time.Millisecond
	leastReady              = 2 * time.Second
	// mostPings, mostConnects and mostRequests bound the probes per second that a server gets from
	// all nodes together.
	mostPings, mostConnects, mostRequests = 4000, 2000, 500
)

// Pace decides the pauses of probes by the number of nodes that probe. The zero value has the
// pauses of a small cluster. All methods may be called at any time.
type Pace struct{ nodes atomic.Int64 }

// SetNodes sets the number of nodes that probe, this one among them. More nodes probe less often.
func (p *Pace) SetNodes(n int) { p.nodes.Store(int64(n)) }

// Nodes returns the number of nodes that probe; 0 means that it is unknown.
func (p *Pace) Nodes() int64 { return p.nodes.Load() }

// per returns the pause of one node with which all nodes together make rate probes per second. It
// is never shorter than least.
func (p *Pace) per(rate int64, least time.Duration) time.Duration {
	return max(least, time.Duration(p.nodes.Load())*time.Second/time.Duration(rate))
}

// Ping returns the pause between two pings.
func (p *Pace) Ping() time.Duration { return p.per(mostPings, LeastPing) }

// ready returns the pause between two requests for /readyz.
func (p *Pace) ready() time.Duration { return p.per(mostRequests, leastReady) }

// phase returns a random part of a pause, for the first pause of a connection. When a server comes
// back, all nodes connect to it at once, and their later probes must not coincide.
func phase(pause time.Duration) time.Duration { return rand.N(pause) }

// connect returns the time from the start of a failed connect to the next one. It is a random value
// from half to three halves of its mean, so that the nodes that wait for a server do not connect at
// the same times.
func (p *Pace) connect() time.Duration {
	mean := p.per(mostConnects, leastConnect)
	return mean/2 + rand.N(mean)
}
