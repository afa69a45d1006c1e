package prober

import (
	"context"
	"crypto/tls"
	"errors"
	"os"
	"time"
)

// holding probes one server while a session lasts: pings over it, and requests for /readyz beside
// it.
type holding struct {
	Target
	session *session
	state   tls.ConnectionState
	// first is the Observation that is reported once the first ping and the first request were
	// answered, or pingLimit after the answer to the ping. It is nil afterwards.
	first *Observation
	// answered reports whether a ping was answered, forgiven whether the outstanding ping got
	// grace.
	answered, forgiven bool

	pinged time.Time // when the outstanding ping was sent; zero if there is none
	// ping fires when the next ping is due, late when the outstanding one has no answer in time,
	// and settle when first is reported anyway.
	ping, late, settle *time.Timer
}

// newHolding returns a holding of a connection that spoke TLS and HTTP/2.
func newHolding(p Target, conn *tls.Conn, first Observation) *holding {
	h := &holding{Target: p, session: newSession(conn), state: conn.ConnectionState(),
		first: &first}
	for _, t := range h.timers() {
		*t = time.NewTimer(time.Hour)
		(*t).Stop()
	}
	return h
}

func (h *holding) timers() []**time.Timer {
	return []**time.Timer{&h.ping, &h.late, &h.settle}
}

func (h *holding) close() {
	for _, t := range h.timers() {
		(*t).Stop()
	}
	h.session.close()
}

// run probes until the session ends or ctx does. down reports that the server did not answer a ping
// or does not read. A session that ends in another way proves nothing.
func (h *holding) run(ctx context.Context) (down bool) {
	readyz, end := h.startReadyz(ctx)
	defer end()
	err := h.sendPing()
	for err == nil {
		select {
		case <-ctx.Done():
			return false
		case err = <-h.session.ended:
		case <-h.session.acks:
			h.takeAck()
		case r := <-readyz:
			h.news(func(o *Observation) {
				o.Readiness = r
				h.judge(h.state, o)
			})
		case <-h.late.C:
			if down = h.missPing(); down {
				return true
			}
		case <-h.settle.C:
			h.reportFirst()
		case <-h.ping.C:
			err = h.sendPing()
		case <-h.Ask:
			err = h.sendPing()
		}
	}
	return !h.answered || errors.Is(err, os.ErrDeadlineExceeded)
}

// sendPing sends a ping unless one is outstanding.
func (h *holding) sendPing() error {
	if !h.pinged.IsZero() {
		return nil
	}
	h.pinged, h.forgiven = time.Now(), false
	h.late.Reset(pingLimit)
	return h.session.ping()
}

// takeAck handles the answer to the outstanding ping. The next ping is due one pause after that
// ping was sent.
func (h *holding) takeAck() {
	if h.pinged.IsZero() {
		return
	}
	trip, pause := time.Since(h.pinged), h.Pace.Ping()
	if !h.answered {
		pause = phase(pause)
		h.settle.Reset(pingLimit)
	}
	h.pinged, h.answered = time.Time{}, true
	h.late.Stop()
	h.ping.Reset(max(pause-trip, 0))
	h.news(func(o *Observation) { o.Trip = trip })
}

// missPing reports whether the outstanding ping has missed its limit. If this process lacked CPU
// time, it may not have read the answer yet, so each ping gets grace once.
func (h *holding) missPing() bool {
	if h.forgiven || time.Since(h.pinged)-pingLimit < grace {
		return true
	}
	h.forgiven = true
	h.late.Reset(grace)
	return false
}

// news reports a change. All changes before the first answers are reported together.
func (h *holding) news(change func(*Observation)) {
	if h.first == nil {
		o := Observation{Up: true}
		change(&o)
		h.Report(o)
		return
	}
	change(h.first)
	if h.answered && h.first.Readiness != NoNews {
		h.reportFirst()
	}
}

func (h *holding) reportFirst() {
	if h.first != nil {
		h.settle.Stop()
		h.Report(*h.first)
		h.first = nil
	}
}
