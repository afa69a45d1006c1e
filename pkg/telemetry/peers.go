package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	peersDesc  = desc("peers", "Other nodes by state.", "state")
	narrowDesc = desc("peers_narrow",
		"Other nodes whose routes have a smaller MTU than the tunnel device.")
	handshakesDesc = desc("peers_oldest_handshake_seconds",
		"Time since the last handshake with a peer, the longest of all peers that had a handshake.")
	silenceDesc = desc("peers_longest_silence_seconds",
		"Time since when a peer in state silent has not answered, the longest of all such peers; "+
			"0 if no peer is silent.")
	receivedDesc = desc("tunnel_receive_bytes_total",
		"Bytes received through the tunnel device from its current peers. It falls when a peer "+
			"is removed.", "device")
	sentDesc = desc("tunnel_transmit_bytes_total",
		"Bytes sent through the tunnel device to its current peers. It falls when a peer "+
			"is removed.", "device")

	peerHandshakeDesc = desc("peer_last_handshake_timestamp_seconds",
		"Unix time of the last handshake with the peer; 0 if there was none. Only with "+
			"metricsPeers.", "peer", "device")
	peerSilenceDesc = desc("peer_silence_seconds",
		"Time since when the peer has not answered packets to it; 0 if it answers or nothing was "+
			"sent to it. Only with metricsPeers.", "peer", "device")
	peerReceivedDesc = desc("peer_receive_bytes_total",
		"Bytes received from the peer through the tunnel. Only with metricsPeers.", "peer",
		"device")
	peerSentDesc = desc("peer_transmit_bytes_total",
		"Bytes sent to the peer through the tunnel. Only with metricsPeers.", "peer", "device")
	peerMTUDesc = desc("peer_mtu_bytes",
		"MTU of the routes to the peer, if it is smaller than the MTU of the device. Only with "+
			"metricsPeers.", "peer", "device")
)

type (
	gaugeFunc   func(*prometheus.Desc, float64, ...string)
	counterFunc func(*prometheus.Desc, uint64, ...string)
)

// collectPeers sends the metrics of all peers together, such as the number of peers by state.
func collectPeers(peers []Peer, now time.Time, gauge gaugeFunc, counter counterFunc) {
	names := map[PeerState]map[string]bool{}
	for _, st := range peerStates {
		names[st] = map[string]bool{}
	}

	var oldest, silence time.Duration
	narrow := map[string]bool{}
	received, sent := map[string]uint64{}, map[string]uint64{}
	for _, p := range peers {
		if names[p.State] == nil {
			names[p.State] = map[string]bool{}
		}
		names[p.State][p.Name] = true
		silence = max(silence, silentFor(p, now))
		if p.Device == "" {
			continue
		}
		if !p.Handshake.IsZero() {
			oldest = max(oldest, now.Sub(p.Handshake))
		}
		if p.MTU != 0 {
			narrow[p.Name] = true
		}
		received[p.Device] += p.Received
		sent[p.Device] += p.Sent
	}

	for st, set := range names {
		gauge(peersDesc, float64(len(set)), string(st))
	}

	gauge(narrowDesc, float64(len(narrow)))
	gauge(handshakesDesc, oldest.Seconds())
	gauge(silenceDesc, silence.Seconds())

	for device := range received {
		counter(receivedDesc, received[device], device)
		counter(sentDesc, sent[device], device)
	}
}

// collectEachPeer sends the series of each peer.
func collectEachPeer(peers []Peer, now time.Time, gauge gaugeFunc, counter counterFunc) {
	seen := map[[2]string]bool{}
	for _, p := range peers {
		key := [2]string{p.Name, p.Device}
		if p.Device == "" || seen[key] {
			continue
		}
		seen[key] = true
		counter(peerReceivedDesc, p.Received, p.Name, p.Device)
		counter(peerSentDesc, p.Sent, p.Name, p.Device)
		gauge(peerSilenceDesc, silentFor(p, now).Seconds(), p.Name, p.Device)
		if p.MTU != 0 {
			gauge(peerMTUDesc, float64(p.MTU), p.Name, p.Device)
		}
		handshake := 0.0
		if !p.Handshake.IsZero() {
			handshake = float64(p.Handshake.UnixNano()) / 1e9
		}
		gauge(peerHandshakeDesc, handshake, p.Name, p.Device)
	}
}

// silentFor returns how long a peer has been silent. It returns 0 for a peer that is not silent.
func silentFor(p Peer, now time.Time) time.Duration {
	if p.State != PeerSilent || p.SilentSince.IsZero() {
		return 0
	}
	return max(0, now.Sub(p.SilentSince))
}
