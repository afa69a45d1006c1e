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
		"Time since the oldest last handshake with a peer that had one.")
	silenceDesc = desc("peers_longest_silence_seconds",
		"For how long a peer in state silent has not answered, of all the longest; 0 when none is.")
	receivedDesc = desc("tunnel_receive_bytes_total",
		"Bytes received through the tunnel device from the peers that it has; less when a peer "+
			"is removed.", "device")
	sentDesc = desc("tunnel_transmit_bytes_total",
		"Bytes sent through the tunnel device to the peers that it has; less when a peer "+
			"is removed.", "device")

	peerHandshakeDesc = desc("peer_last_handshake_timestamp_seconds",
		"When the last handshake with the peer completed, Unix time; 0 if none has. With "+
			"metricsPeers.", "peer", "device")
	peerSilenceDesc = desc("peer_silence_seconds",
		"For how long the peer has not answered what was sent to it; 0 when it does or need not. "+
			"With metricsPeers.", "peer", "device")
	peerReceivedDesc = desc("peer_receive_bytes_total",
		"Bytes received from the peer through the tunnel. With metricsPeers.", "peer", "device")
	peerSentDesc = desc("peer_transmit_bytes_total",
		"Bytes sent to the peer through the tunnel. With metricsPeers.", "peer", "device")
	peerMTUDesc = desc("peer_mtu_bytes",
		"MTU of the routes to the peer, where it is narrower than the device's. With metricsPeers.",
		"peer", "device")

	peerDescs = []*prometheus.Desc{
		peersDesc, narrowDesc, handshakesDesc, silenceDesc, receivedDesc, sentDesc,
		peerHandshakeDesc, peerSilenceDesc, peerReceivedDesc, peerSentDesc, peerMTUDesc,
	}
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
