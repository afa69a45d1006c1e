package engine

import (
	"sync/atomic"

	"github.com/kubeveil/kubeveil/pkg/engine/packet"
)

// reason is the reason why a packet, message or request was dropped or refused.
type reason uint8

const (
	shortDatagram reason = iota
	unknownType
	wrongSize
	unknownIndex
	expiredSession
	replayed
	forged
	handshakeQueueFull
	badMAC1
	cookieDemanded
	rateLimited
	unknownPeer
	handshakeReplayed
	handshakeFlood
	badHandshake
	badCookie
	noRoute
	noEndpoint
	deviceDown
	stagedFull
	stagedGivenUp
	keyExhausted
	wrongSource
	tunRefused
	sendTooLarge
	sendNoRoute
	sendRefused
	sendFull
	sendFailed
	handoverMalformed
	handoverAbandoned
	configurationRefused
	// The reasons of package packet follow, for packets from the TUN and for decrypted packets.
	badTUNPacket
	badInnerPacket = badTUNPacket + reason(packet.Reasons)
	reasonCount    = badInnerPacket + reason(packet.Reasons)
)

var reasonNames = [badTUNPacket]string{"short_datagram", "unknown_type", "wrong_size",
	"unknown_index", "expired_session", "replayed",
	"forged", "handshake_queue_full", "bad_mac1", "cookie_demanded", "rate_limited", "unknown_peer",
	"handshake_replayed",
	"handshake_flood", "bad_handshake", "bad_cookie", "no_route", "no_endpoint", "device_down",
	"staged_full", "staged_given_up",
	"key_exhausted", "wrong_source", "tun_refused", "send_too_large", "send_no_route",
	"send_refused", "send_full", "send_failed",
	"handover_malformed", "handover_abandoned", "configuration_refused"}

func (r reason) String() string {
	switch {
	case r < badTUNPacket:
		return reasonNames[r]
	case r < badInnerPacket:
		return "tun_" + packet.Reason(r-badTUNPacket).String()
	case r < reasonCount:
		return "inner_" + packet.Reason(r-badInnerPacket).String()
	}
	return "unknown"
}

// drops counts drops by reason.
type drops [reasonCount]atomic.Uint64

func (d *drops) add(r reason, n int) {
	if n > 0 {
		d[r].Add(uint64(n))
	}
}

// Drops returns the number of drops by reason. Reasons that never occurred are absent.
func (d *Device) Drops() map[string]uint64 {
	out := map[string]uint64{}
	for r := range reasonCount {
		if n := d.drops[r].Load(); n > 0 {
			out[r.String()] = n
		}
	}
	return out
}
