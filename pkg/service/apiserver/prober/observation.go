package prober

import (
	"net/netip"
	"sync"
	"time"
)

// Readiness is the outcome of a request for /readyz.
type Readiness int

// The outcomes.
const (
	NoNews      Readiness = iota // there was no request
	Ready                        // 200
	NotReady                     // 5xx
	Hangs                        // no answer
	SaysNothing                  // 401, 403 and all others: pings alone decide
)

// Trust is the outcome of the verification of a certificate.
type Trust int

// The outcomes.
const (
	TrustUnknown Trust = iota // nothing to verify it by, or no connection
	Trusted
	TrustRefused
)

// Observation is the result of a probe. A field without a value leaves the value of an earlier
// Observation in force. But if Up is false, round trip and trust are unknown again.
type Observation struct {
	// Up reports whether it answers pings, or handshakes if it does not speak HTTP/2.
	Up        bool
	Readiness Readiness
	Trip      time.Duration // the round trip of a ping; 0 if there was none
	Trust     Trust
	Distrust  error // the reason of TrustRefused
	// Named are the addresses of Target.Names that a trusted certificate names, in their order.
	Named []netip.AddrPort
}

// Cookies are the sockets of probes, by cookie. The zero value is empty. All methods may be called
// at any time.
type Cookies struct{ all sync.Map }

// Has reports whether a probe made the socket.
func (o *Cookies) Has(cookie uint64) bool {
	_, ok := o.all.Load(cookie)
	return ok
}

func (o *Cookies) add(cookie uint64) { o.all.Store(cookie, nil) }

func (o *Cookies) remove(cookie uint64) { o.all.Delete(cookie) }
