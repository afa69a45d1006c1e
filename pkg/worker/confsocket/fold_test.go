package confsocket

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/engine"
	"github.com/kubeveil/kubeveil/pkg/engine/enginetest"
	"github.com/kubeveil/kubeveil/pkg/engine/sock"
)

// newOwn returns a device of package engine whose link is down.
func newOwn(t *testing.T) *enginetest.TunDevice {
	t.Helper()
	return enginetest.NewEngine(t, func(o *engine.DeviceConfig) {
		o.Link = func() (sock.Link, error) { return sock.Link{MTU: enginetest.MTU}, nil }
		o.Log = slog.New(slog.DiscardHandler)
	})
}

// randomSections returns sections of a set about peers. There are few keys and prefixes, so that
// peers are removed, made again, and take allowed IPs from each other.
func randomSections(r *rand.Rand) string {
	prefixes := []string{"10.1.0.0/16", "10.1.2.0/24", "10.2.0.0/16", "fd00:1::/32", "fd00:1:2::/48"}
	var b strings.Builder
	for range 1 + r.IntN(3) {
		fmt.Fprintf(&b, "public_key=%064x\n", 9+r.IntN(4))
		switch r.IntN(5) {
		case 0:
			b.WriteString("remove=true\n")
			continue
		case 1:
			b.WriteString("update_only=true\n")
		}

		if r.IntN(3) == 0 {
			fmt.Fprintf(&b, "preshared_key=%064x\n", r.IntN(3))
		}
		if r.IntN(3) == 0 {
			fmt.Fprintf(&b, "endpoint=198.18.0.%d:%d\n", 1+r.IntN(3), 1+r.IntN(3))
		}
		if r.IntN(3) == 0 {
			fmt.Fprintf(&b, "persistent_keepalive_interval=%d\n", r.IntN(3))
		}
		if r.IntN(3) == 0 {
			b.WriteString("replace_allowed_ips=true\n")
		}
		for range r.IntN(4) {
			minus := ""
			if r.IntN(4) == 0 {
				minus = "-"
			}
			fmt.Fprintf(&b, "allowed_ip=%s%s\n", minus, prefixes[r.IntN(len(prefixes))])
		}
	}
	return b.String()
}

// peersOf returns the peers in a device's state, sorted by key.
func peersOf(t *testing.T, dev Device) string {
	t.Helper()
	var get bytes.Buffer
	errtest.Must(t, dev.IpcGetOperation(&get))
	_, rest, ok := strings.Cut("\n"+string(configuration(get.Bytes())), "\npublic_key=")
	if !ok {
		return ""
	}
	peers := strings.Split(rest, "\npublic_key=")
	for i, p := range peers {
		lines := strings.Split(strings.TrimSuffix(p, "\n"), "\n")
		slices.Sort(lines[1:])
		peers[i] = strings.Join(lines, "\n")
	}
	slices.Sort(peers)
	return strings.Join(peers, "\n")
}

// Three devices have the same peers: one that is set step by step, one that is set by the same
// steps as one text, and one that begins with the state that was kept after kill -9.
func TestSetsOneByOneAreTheSameSetsAsOneText(t *testing.T) {
	for _, tc := range []struct {
		name string
		make func(*testing.T) Device
	}{
		{"kubeveil", func(t *testing.T) Device { return newOwn(t) }},
		{"wireguard-go", func(t *testing.T) Device { return newDevice(t) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			step, once, restored := tc.make(t), tc.make(t), tc.make(t)
			for seed := range uint64(60) {
				r := rand.New(rand.NewPCG(seed, 1))
				first := "replace_peers=true\n" + randomSections(r)
				text := first
				s := &Server{Device: step, State: filepath.Join(dir, fmt.Sprint(seed))}
				errtest.Must(t, s.set([]byte(first)))
				for range r.IntN(20) {
					next := randomSections(r)
					text += next
					errtest.Must(t, s.set([]byte(next)))
					if r.IntN(10) == 0 {
						errtest.Must(t, s.set(fmt.Appendf(nil, "fwmark=%d\n", r.IntN(5))))
					}
				}

				errtest.Must(t, once.IpcSetOperation(strings.NewReader(text)))
				errtest.Must(t, restored.IpcSetOperation(strings.NewReader("replace_peers=true\n")))
				again := &Server{Device: restored, State: s.State}
				errtest.Must(t, again.Restore(slog.New(slog.NewTextHandler(os.Stderr, nil))))
				want := peersOf(t, step)
				if got := peersOf(t, once); got != want {
					t.Fatalf("seed %d: one by one\n%s\nas one text\n%s\nthe text\n%s", seed, want, got,
						text)
				}
				if got := peersOf(t, restored); got != want {
					t.Fatalf("seed %d: before\n%s\nafter a restart\n%s", seed, want, got)
				}
			}
		})
	}
}

// A device at its limit of peers keeps its settings, although the kept text names more of them.
func TestKeptStateMayNameMorePeersThanTheDeviceHolds(t *testing.T) {
	var whole, changes strings.Builder
	const peers = 1 << 16
	for i := range peers {
		fmt.Fprintf(&whole, "public_key=%064x\n", i+9)
	}
	for i := range 100 {
		fmt.Fprintf(&changes, "public_key=%064x\nremove=true\npublic_key=%064x\n", i+9, i+9+peers)
	}
	dev := newOwn(t)
	if err := dev.IpcSetOperation(strings.NewReader(whole.String() + changes.String())); err != nil {
		t.Errorf("set: %v", err)
	}
	if n := strings.Count(peersOf(t, dev), "protocol_version"); n != peers {
		t.Errorf("%d peers, want %d", n, peers)
	}
	one := fmt.Sprintf("public_key=%064x\n", 5)
	if err := dev.IpcSetOperation(strings.NewReader(one)); err == nil {
		t.Error("a peer beyond the limit was taken")
	}
}

// A missing link does not make the kept state unusable.
func TestKeptEndpointNamesNoInterface(t *testing.T) {
	s := &Server{Device: newOwn(t), State: filepath.Join(t.TempDir(), "state")}
	errtest.Must(t, s.set([]byte(setText(100))))
	errtest.Must(t, s.set(fmt.Appendf(nil, "public_key=%064x\nendpoint=[fe80::1%%lo]:7\n", 9)))
	b, err := load(s.State)
	errtest.Must(t, err)
	if !bytes.Contains(b, []byte("endpoint=[fe80::1%1]:7\n")) || bytes.Contains(b, []byte("%lo")) {
		t.Errorf("kept %s", b[:min(len(b), 300)])
	}
}
