package worker

import (
	"bytes"
	"context"
	"math/rand/v2"
	"time"

	"golang.zx2c4.com/wireguard/device"
)

// greeter does for wireguard-go what package engine does itself. At start and after each
// configuration, it greets every peer that has an endpoint and no handshake yet: it initiates a
// handshake.
//
// At start, a peer may still have a session with the previous process, whose keys are gone. It
// cannot notice that, and never would if it only receives.
//
// A greeting is repeated much earlier than after the library's 5 seconds. Handshakes fail if both
// sides initiate at once, because each response then belongs to an abandoned initiation. The pauses
// are random. Otherwise, under steady traffic, both sides would repeat in the same millisecond.
//
// After a successful handshake, the greeter sends a few empty packets (confirmations). The peer
// uses its old keys until it receives a packet under the new keys, and the library sends only one.
// If that packet were lost, a peer that only sends would notice after 15 seconds.
type greeter struct {
	dev *device.Device
	// changed requests greetings; it holds at most one request.
	changed chan struct{}
	// greeted records the greetings of each peer, so that an unreachable peer is not greeted again
	// whenever another peer is configured.
	greeted map[device.NoisePublicKey]greeting
}

// greeting counts the greetings that were sent to a peer at an endpoint, and the confirmations
// since the handshake.
type greeting struct {
	endpoint  string
	times     int
	confirmed int
}

func newGreeter(dev *device.Device) *greeter {
	return &greeter{dev: dev, changed: make(chan struct{}, 1)}
}

// greet makes run begin new rounds. It does not block.
func (g *greeter) greet() {
	select {
	case g.changed <- struct{}{}:
	default:
	}
}

// A greeting is repeated up to rounds times. The pauses are firstPause, then twice the previous
// pause, each longer or shorter by up to half. The shortest pause is longer than the 20 ms within
// which a peer treats a second initiation as a flood.
const (
	rounds        = 6
	firstPause    = 150 * time.Millisecond
	confirmations = 3
)

// Greetings are sent in batches, so that their responses do not put this process under load. Under
// load it would demand cookies.
const (
	batch      = 64
	batchPause = 10 * time.Millisecond
)

// run greets on request, until ctx ends.
func (g *greeter) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.changed:
		}
		for pause := firstPause; g.round(ctx); pause *= 2 {
			if !sleep(ctx, g.changed, pause/2+rand.N(pause)) {
				break
			}
		}
	}
}

// round greets each stranger that was not greeted often enough; a new initiation replaces an
// earlier one. It sends a confirmation to each peer whose handshake has succeeded. It returns false
// if there was nothing to send.
func (g *greeter) round(ctx context.Context) bool {
	var get bytes.Buffer
	if err := g.dev.IpcGetOperation(&get); err != nil {
		return false
	}

	before := g.greeted
	g.greeted = map[device.NoisePublicKey]greeting{}
	sent := 0

	unknown := strangers(get.Bytes())
	for key, done := range before {
		p := g.dev.LookupPeer(key)
		if _, ok := unknown[key]; ok || p == nil || done.confirmed == confirmations {
			continue
		}
		p.SendKeepalive()
		done.confirmed++
		g.greeted[key] = done
		sent++
	}

	for key, endpoint := range unknown {
		done := before[key]
		if done.endpoint != endpoint {
			done = greeting{endpoint: endpoint}
		}
		g.greeted[key] = done
		p := g.dev.LookupPeer(key)
		if p == nil || done.times == rounds {
			continue
		}
		if sent++; sent%batch == 0 && !sleep(ctx, nil, batchPause) {
			return false
		}
		if done.times > 0 {
			p.ExpireCurrentKeypairs()
		}
		// An error means that the packet was lost, and the library has already logged it.
		_ = p.SendHandshakeInitiation(false)
		g.greeted[key] = greeting{endpoint: endpoint, times: done.times + 1}
	}

	return sent > 0
}

// strangers returns the peers in the answer to a "get" that have an endpoint and no handshake yet,
// with their endpoints.
func strangers(get []byte) map[device.NoisePublicKey]string {
	out := map[device.NoisePublicKey]string{}
	var key device.NoisePublicKey
	known, endpoint := false, ""
	for line := range bytes.Lines(get) {
		name, value, _ := bytes.Cut(bytes.TrimSpace(line), []byte("="))
		switch string(name) {
		case "public_key":
			known, endpoint = key.FromHex(string(value)) == nil, ""
		case "endpoint":
			endpoint = string(value)
		case "last_handshake_time_sec":
			if known && endpoint != "" && string(value) == "0" {
				out[key] = endpoint
			}
		}
	}
	return out
}

// sleep waits for d and returns true. It returns false early if ctx ends or wake has a value, which
// stays in wake.
func sleep(ctx context.Context, wake chan struct{}, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-wake:
		select {
		case wake <- struct{}{}:
		default:
		}
		return false
	case <-time.After(d):
		return true
	}
}
