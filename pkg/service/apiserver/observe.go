package apiserver

import (
	"net/netip"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/pkg/service/apiserver/prober"
)

const (
	// A server that left hangs of its last hangsMost requests for /readyz without an answer in
	// readyLimit gets no new connections.
	hangsMost = 3
	// A server is slow if its round trip was slowTimes the median of the others' and more than
	// slowTrip for slowFor.
	slowTimes, slowTrip, slowFor = 5, 100 * time.Millisecond, 10 * time.Second
)

// use ranks servers for new connections. The backends of a family are its servers of the best rank.
type use int

const (
	useDown    use = iota // it does not answer, or only another server's certificate is valid
	useUnready            // it reports that it is not ready, or its handlers hang
	useSlow
	useGood
)

// judgement summarizes the observations of a server.
type judgement struct {
	answers bool
	up      bool // answers, with a certificate that may be used
	use     use
	// unready reports whether the last answer to /readyz was "not ready". hangs is the number of
	// requests without an answer since then.
	unready   bool
	hangs     int
	trip      time.Duration // the smoothed round trip; 0 if it is unknown
	slowSince time.Time     // zero if it is not slow
	trust     prober.Trust
	distrust  error
	// named is the address list of the last certificate that was judged. It stays when the
	// connection ends.
	named []netip.AddrPort
}

// observe records an observation, and reports whether entry 0 may have changed.
func (a *Servers) observe(addr netip.AddrPort, o prober.Observation, now time.Time) (changed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.servers[addr]
	if s == nil {
		return false
	}
	changed = s.since.IsZero()
	if !s.probed {
		s.probed = true
		a.closing.poke()
	}
	named := s.named
	s.take(o)
	changed = changed || !slices.Equal(named, s.named)
	s.noteSlow(a.othersTripLocked(addr), now)

	// A wrong certificate counts only if another server's certificate was verified.
	verified := false
	for _, other := range a.servers {
		verified = verified || other.left.IsZero() && other.answers && other.trust == prober.Trusted
	}
	for _, one := range a.servers {
		changed = one.judge(verified, now) || changed
	}
	if changed {
		a.closing.poke()
	}
	return changed
}

func (j *judgement) take(o prober.Observation) {
	if !o.Up {
		j.answers, j.trip, j.slowSince, j.trust, j.distrust = false, 0, time.Time{}, 0, nil
		return
	}

	j.answers = true
	switch o.Readiness {
	case prober.Ready, prober.SaysNothing:
		j.unready, j.hangs = false, 0
	case prober.NotReady:
		j.unready, j.hangs = true, 0
	case prober.Hangs:
		j.hangs++
	}
	if o.Trust != prober.TrustUnknown {
		j.trust, j.distrust, j.named = o.Trust, o.Distrust, o.Named
	}

	switch {
	case o.Trip == 0:
	case j.trip == 0:
		j.trip = o.Trip
	default:
		j.trip += (o.Trip - j.trip) / 4
	}
}

// noteSlow records since when the server is much slower than the others. others is their median
// round trip; 0 if it is unknown.
func (j *judgement) noteSlow(others time.Duration, now time.Time) {
	switch {
	case others == 0 || j.trip <= slowTrip || j.trip <= slowTimes*others:
		j.slowSince = time.Time{}
	case j.slowSince.IsZero():
		j.slowSince = now
	}
}

// othersTripLocked returns the median round trip of the other listed servers, 0 if there are none.
func (a *Servers) othersTripLocked(addr netip.AddrPort) time.Duration {
	var trips []time.Duration
	for other, s := range a.servers {
		if other != addr && s.left.IsZero() && s.trip > 0 {
			trips = append(trips, s.trip)
		}
	}
	if len(trips) == 0 {
		return 0
	}
	slices.Sort(trips)
	return trips[len(trips)/2]
}

// judge updates up, heard, since and use, and reports whether they changed. verified reports
// whether the certificate of a server that answers was verified.
func (s *server) judge(verified bool, now time.Time) (changed bool) {
	up, use := s.answers && (s.trust != prober.TrustRefused || !verified), useGood
	switch {
	case !up:
		use = useDown
	case s.unready || s.hangs >= hangsMost:
		use = useUnready
	case !s.slowSince.IsZero() && now.Sub(s.slowSince) >= slowFor:
		use = useSlow
	}

	if !s.probed {
		return false
	}
	changed = s.use != use
	s.use = use
	fell := s.heard && !s.answers
	s.heard = s.answers
	if s.up != up || s.since.IsZero() || fell {
		s.up, s.since, s.swept, s.searched, s.times = up, now, time.Time{}, false, 0
		changed = true
	}
	return changed
}
