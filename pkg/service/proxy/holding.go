package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"os"
	"time"
)

// holding probes one server over one session: pings, and requests for /readyz.
type holding struct {
	probe
	session *session
	state   tls.ConnectionState
	// first is the observation that is reported once the first ping and the first request have an
	// answer, or the request has none pingLimit after the ping. It is nil afterwards.
	first *observation
	// answered reports whether a ping was answered, forgiven whether the outstanding one got grace.
	answered, forgiven bool

	pinged    time.Time // when the outstanding ping was sent; zero if there is none
	request   uint32    // the stream of the outstanding request; 0 if there is none
	requested time.Time // when that was sent
	phased    bool      // the first request is over
	// ping and ready fire when the next ping and the next request are due. pingLate and readyLate
	// fire when the outstanding one has no answer in time, settle when first is reported anyway.
	ping, ready, pingLate, readyLate, settle *time.Timer
}

// newHolding returns a holding of a connection that spoke TLS and HTTP/2.
func newHolding(p probe, conn *tls.Conn, first observation) *holding {
	h := &holding{probe: p, session: newSession(conn), state: conn.ConnectionState(), first: &first}
	for _, t := range h.timers() {
		*t = time.NewTimer(time.Hour)
		(*t).Stop()
	}
	return h
}

func (h *holding) timers() []**time.Timer {
	return []**time.Timer{&h.ping, &h.ready, &h.pingLate, &h.readyLate, &h.settle}
}

// close ends the session.
func (h *holding) close() {
	for _, t := range h.timers() {
		(*t).Stop()
	}
	h.session.close()
}

// run probes until the session ends or ctx does. It returns whether the server is down: it left a
// ping without an answer, or does not read. A session that ended otherwise proves nothing.
func (h *holding) run(ctx context.Context) (down bool) {
	err := h.sendPing()
	if err == nil {
		err = h.sendRequest()
	}

	for err == nil {
		select {
		case <-ctx.Done():
			return false
		case err = <-h.session.ended:
		case <-h.session.acks:
			h.takeAck()
		case a := <-h.session.answers:
			h.takeAnswer(a)
		case <-h.pingLate.C:
			if down = h.missPing(); down {
				return true
			}
		case <-h.readyLate.C:
			err = h.session.cancel(h.request)
			h.endRequest(hangs)
		case <-h.settle.C:
			h.reportFirst()
		case <-h.ping.C:
			err = h.sendPing()
		case <-h.ask:
			err = h.sendPing()
		case <-h.ready.C:
			h.news(func(o *observation) { o.trust, o.distrust = h.judge(h.state) })
			err = h.sendRequest()
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
	h.pingLate.Reset(pingLimit)
	return h.session.ping()
}

// takeAck takes the answer to the outstanding ping. The next one is due a pause after it was sent.
func (h *holding) takeAck() {
	if h.pinged.IsZero() {
		return
	}
	trip, pause := time.Since(h.pinged), h.pace.ping()
	if !h.answered {
		pause = phase(pause)
		h.settle.Reset(pingLimit)
	}
	h.pinged, h.answered = time.Time{}, true
	h.pingLate.Stop()
	h.ping.Reset(max(pause-trip, 0))
	h.news(func(o *observation) { o.trip = trip })
}

// missPing reports whether the limit of the outstanding ping is over. If this process had no CPU at
// the time, it may not have read the answer: the ping gets grace once.
func (h *holding) missPing() bool {
	if h.forgiven || time.Since(h.pinged)-pingLimit < grace {
		return true
	}
	h.forgiven = true
	h.pingLate.Reset(grace)
	return false
}

// sendRequest asks for /readyz.
func (h *holding) sendRequest() (err error) {
	h.requested = time.Now()
	h.readyLate.Reset(readyLimit)
	h.request, err = h.session.get("/readyz")
	return err
}

// takeAnswer takes the answer to the outstanding request. A server that asks for credentials does
// not say whether it is ready.
func (h *holding) takeAnswer(a answer) {
	switch {
	case a.stream != h.request:
	case a.status == http.StatusOK:
		h.endRequest(isReady)
	case a.status >= http.StatusInternalServerError:
		h.endRequest(notReady)
	case a.status == 0:
		h.endRequest(hangs)
	default:
		h.endRequest(saysNothing)
	}
}

// endRequest ends the outstanding request. The next one is due a pause after it was sent.
func (h *holding) endRequest(r readiness) {
	pause := h.pace.ready()
	if !h.phased {
		pause = phase(pause)
	}
	h.request, h.phased = 0, true
	h.readyLate.Stop()
	h.ready.Reset(max(pause-time.Since(h.requested), 0))
	h.news(func(o *observation) { o.readiness = r })
}

// news reports a change to what is known. What comes before the first answers is reported together.
func (h *holding) news(change func(*observation)) {
	if h.first == nil {
		o := observation{up: true}
		change(&o)
		h.report(o)
		return
	}
	change(h.first)
	if h.answered && h.first.readiness != noNews {
		h.reportFirst()
	}
}

func (h *holding) reportFirst() {
	if h.first != nil {
		h.settle.Stop()
		h.report(*h.first)
		h.first = nil
	}
}
