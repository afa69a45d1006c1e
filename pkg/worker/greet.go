package worker

import (
	"bytes"
	"context"
	"math/rand/v2"
	"time"

	"golang.zx2c4.com/wireguard/device"
)

// greeter initiates a handshake with every peer that has an endpoint and no successful handshake
// yet: at start, and after each configuration.
//
// At start, because a peer with a session of the previous process cannot know that its keys are
// gone. A peer that only receives would never find out.
//
// A failed handshake is repeated much earlier than after the library's 5 seconds. It fails when
// both sides initiate at once: each response then refers to an abandoned initiation. Under steady
// traffic both would repeat in the same millisecond 5 seconds later, so the pauses are random.
//
// A successful handshake is confirmed a few times. The peer uses its old keys until it has received
// a packet under the new ones, and the library sends only one. If that were lost, a peer that only
// sends would notice after 15 seconds.
type greeter struct {
	dev *device.Device
	// changed requests greetings; it holds at most one request.
	changed chan struct{}
	// greeted records what was done for each stranger, so that a peer that is away does not cost a
	// handshake for each configuration of another.
	greeted map[device.NoisePublicKey]greeting
}

// greeting is how often a peer was greeted at an endpoint, and how often the handshake
// was confirmed since.
type greeting struct {
	endpoint  string
	times     int
	confirmed int
}

func newGreeter(dev *device.Device) *greeter {
	return &greeter{dev: dev, changed: make(chan struct{}, 1)}
}

// greet requests greetings.
func (g *greeter) greet() {
	select {
	case g.changed <- struct{}{}:
	default:
	}
}

// Greetings are repeated after firstPause and then after twice the last pause,
// each made longer or shorter by up to half, until rounds are over. The first
// is longer than the 20 ms within which a peer takes a second one for a flood.
const (
	rounds        = 6
	firstPause    = 150 * time.Millisecond
	confirmations = 3
)

// Many greetings are spread, so that the answers do not put this process under load: it would then
// demand cookies first.
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

// round begins a handshake with each stranger that was not greeted often enough, and discards the
// one that was begun before. It also confirms those that succeeded. It returns false when there was
// neither.
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
		// Its error is a lost packet, and the library has logged it.
		_ = p.SendHandshakeInitiation(false)
		g.greeted[key] = greeting{endpoint: endpoint, times: done.times + 1}
	}

	return sent > 0
}

// strangers are the peers in a "get" that have an endpoint and no handshake,
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

// sleep returns false when ctx ended, or when something came by wake (and was put back).
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
