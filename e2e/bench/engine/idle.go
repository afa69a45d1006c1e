package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/internal/poll"
	"github.com/kubeveil/kubeveil/internal/secret"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/load"
	"github.com/kubeveil/kubeveil/pkg/engine/aead"
	"github.com/kubeveil/kubeveil/pkg/engine/noise"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
	"github.com/kubeveil/kubeveil/pkg/worker"
)

const (
	// idlePeers is the number of peers that have a session and send only keepalives.
	idlePeers = 1000
	// keepalive is the interval of persistent keepalives.
	keepalive = 25 * time.Second
	// idleWindow is the duration of the measurement: two keepalives of each peer.
	idleWindow = 2 * keepalive
	// greeting is the pause between the handshakes of two peers. At a higher rate, the device would
	// answer with cookies.
	greeting = 10 * time.Millisecond
)

// idler is the far end of one idle peer.
type idler struct {
	conn    *net.UDPConn
	id      *noise.Identity
	secrets *noise.Secrets
	keys    *noise.Keys
}

// idle measures the memory and CPU time of a device process that has a session with each of
// idlePeers. Both engines are measured at the same time, because both are idle.
func (s *run) idle(ctx context.Context) error {
	var worlds []*world
	defer func() {
		for _, w := range worlds {
			w.close()
		}
	}()

	measured := []side{sides[0], sides[2]}
	for _, m := range measured {
		m.file = "i" + m.file
		w := unbuilt(m, 1500, s.dir)
		worlds = append(worlds, w)
		end, err := w.idle(ctx, filepath.Join(s.Root, "out", "bin", "veil-wg"))
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		defer end()
		s.Progress("%s has sessions with %d peers", m.name, idlePeers)
	}

	before, err := costs(worlds)
	if err != nil {
		return err
	}
	if err := poll.Pause(ctx, idleWindow); err != nil {
		return err
	}
	after, err := costs(worlds)
	if err != nil {
		return err
	}

	var memory, share []float64
	for i, w := range worlds {
		sent := after[i].sent - before[i].sent
		// A keepalive message has 32 bytes.
		if least := int64(2 * idlePeers * 32 * 9 / 10); sent < least {
			return fmt.Errorf("%s sent %d bytes of keepalives, want %d", w.side.name, sent, least)
		}
		memory = append(memory, after[i].resident)
		share = append(share, 100*(after[i].cpu-before[i].cpu).Seconds()/idleWindow.Seconds())
	}

	base := measured[1].name
	m, err := bench.NewCase("idle_memory", 1500, bench.MiB, memory[:1], memory[1:], base)
	if err != nil {
		return err
	}
	c, err := bench.NewCase("idle_cpu", 1500, bench.Percent, share[:1], share[1:], base)
	if err != nil {
		return err
	}
	s.keep(m, c)
	return nil
}

// cost is a snapshot of the cost of a device process.
type cost struct {
	cpu      time.Duration
	resident float64 // MiB
	sent     int64   // bytes to all peers
}

func costs(worlds []*world) (out []cost, err error) {
	for _, w := range worlds {
		var c cost
		if c.cpu, err = w.cpu(); err != nil {
			return nil, err
		}
		if c.resident, err = load.ResidentMiB(w.procs[nodeA].Process.Pid); err != nil {
			return nil, err
		}
		if c.sent, err = w.sentBytes(); err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

// sentBytes returns the number of bytes that a device sent to all its peers.
func (w *world) sentBytes() (sum int64, err error) {
	lines, err := get(w.idleSocket())
	if err != nil {
		return 0, err
	}
	for _, line := range lines {
		if text, ok := strings.CutPrefix(line, "tx_bytes="); ok {
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return 0, err
			}
			sum += n
		}
	}
	return sum, nil
}

// idleDevice returns the name of the device of part idle. The name is unique on this machine,
// because the socket of the device is in a folder that all network namespaces share.
func (w *world) idleDevice() string {
	n := os.Getpid() * 2
	if w.side.engine == worker.EngineKubeveil {
		n++
	}
	return fmt.Sprintf("%s%d", abi.TunnelDevicePrefix, n)
}

func (w *world) idleSocket() string {
	return filepath.Join(abi.WireGuardSocketDir, w.idleDevice()+".sock")
}

// startIdle starts the veil-wg program as the device process, because a child process of this
// larger program would use more memory.
func (w *world) startIdle(program string) error {
	if err := os.MkdirAll(w.dir, 0o700); err != nil {
		return err
	}
	cmd := w.spaces[nodeA].Command(context.Background(), nil, program, "device", "--dir", w.dir,
		"--mtu", strconv.Itoa(w.mtu-overhead), "--engine", w.side.engine, w.idleDevice())
	log, err := os.Create(filepath.Join(w.dir, "log"))
	if err != nil {
		return err
	}
	w.logs = append(w.logs, log)
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		return err
	}
	w.procs[nodeA] = cmd
	return nil
}

// idle starts a device process and makes a session between it and each of idlePeers. The peers are
// sockets of this process on loopback of the device's namespace. end closes them and removes the
// device's socket.
func (w *world) idle(ctx context.Context, program string) (end func(), err error) {
	arena := new(secret.Arena)
	var peers []*idler
	closeAll := func() {
		_ = os.Remove(w.idleSocket())
		for _, p := range peers {
			p.conn.Close()
		}
		_ = arena.Close()
	}
	defer func() {
		if err != nil {
			closeAll()
		}
	}()

	if err := w.add(nodeA); err != nil {
		return nil, err
	}
	if err := w.startIdle(program); err != nil {
		return nil, err
	}

	public, keys, err := withPeers(ctx, w.idleSocket(), idlePeers, keepalive)
	if err != nil {
		return nil, err
	}
	for i, key := range keys {
		// An engine limits the handshakes per address.
		p, err := w.newIdler(arena, &net.UDPAddr{IP: net.IPv4(127, 1, byte(i/250), byte(1+i%250))})
		if err != nil {
			return nil, err
		}
		text := key.Bytes()
		p.id.SetPrivate(&text)
		peers = append(peers, p)
	}

	worker, err := aead.NewWorker(arena)
	if err != nil {
		return nil, err
	}
	for i, p := range peers {
		if err := p.greet(public, worker, uint32(i+1)); err != nil {
			return nil, fmt.Errorf("peer %d: %w", i, err)
		}
		if err := poll.Pause(ctx, greeting); err != nil {
			return nil, err
		}
	}
	return closeAll, nil
}

// withPeers configures a device with a key and n peers. It returns the device's public key and the
// peers' keys.
func withPeers(ctx context.Context, socket string, n int,
	keepalive time.Duration) (noise.PublicKey, []wgkey.Private, error) {
	all := make([]wgkey.Private, n+1)
	var text strings.Builder
	for i := range all {
		var err error
		if all[i], err = wgkey.Generate(); err != nil {
			return noise.PublicKey{}, nil, err
		}
		private, public := all[i].Bytes(), all[i].Public()
		if i == 0 {
			fmt.Fprintf(&text, "private_key=%x\nlisten_port=%d\n", private[:], port)
			continue
		}
		fmt.Fprintf(&text, "public_key=%x\npersistent_keepalive_interval=%d\n"+
			"allowed_ip=10.%d.%d.0/24\n", public[:], int(keepalive.Seconds()), i/250, i%250)
	}
	return noise.PublicKey(all[0].Public()), all[1:], configure(ctx, socket, text.String())
}

// newIdler makes the far end of a peer without a key, with an address on loopback of the device's
// namespace. A nil address means any.
func (w *world) newIdler(arena *secret.Arena, from *net.UDPAddr) (p *idler, err error) {
	p = &idler{}
	if p.id, err = noise.NewIdentity(arena); err != nil {
		return nil, err
	}
	if p.secrets, err = secret.Alloc[noise.Secrets](arena); err != nil {
		return nil, err
	}
	if p.keys, err = secret.Alloc[noise.Keys](arena); err != nil {
		return nil, err
	}
	return p, w.spaces[nodeA].Do(func() (err error) {
		p.conn, err = net.DialUDP("udp4", from,
			&net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
		return err
	})
}

// greet makes a session with the device and confirms it by a keepalive. It answers a cookie by
// another attempt.
func (p *idler) greet(device noise.PublicKey, worker *aead.Worker, index uint32) error {
	stamper := noise.NewStamper(device)
	p.id.Precompute(p.secrets, &device)
	for try := range 5 {
		var msg [noise.InitiationSize]byte
		if err := p.id.Initiate(p.secrets, &device, index, noise.Stamp(time.Now(), noise.Timestamp{}),
			&msg); err != nil {
			return err
		}
		stamper.Stamp(msg[:], time.Duration(try))
		if _, err := p.conn.Write(msg[:]); err != nil {
			return err
		}

		b := make([]byte, 256)
		_ = p.conn.SetReadDeadline(time.Now().Add(time.Second))
		n, err := p.conn.Read(b)
		if err != nil {
			continue
		}
		switch {
		case n == noise.CookieSize && b[0] == noise.TypeCookie:
			stamper.Take((*[noise.CookieSize]byte)(b), time.Duration(try))
		case n == noise.ResponseSize && b[0] == noise.TypeResponse:
			if err := p.id.Finish(p.secrets, (*[noise.ResponseSize]byte)(b), p.keys); err != nil {
				return err
			}
			return p.confirm(worker, noise.Sender(b))
		}
	}
	return errors.New("no session after five attempts")
}

// confirm sends the first keepalive of a session. The responder uses the session only after it.
func (p *idler) confirm(worker *aead.Worker, receiver uint32) error {
	const header = 16
	msg := make([]byte, header+aead.Overhead)
	msg[0] = noise.TypeTransport
	msg[4], msg[5], msg[6], msg[7] = byte(receiver), byte(receiver>>8), byte(receiver>>16),
		byte(receiver>>24)
	aead.XCrypto.Seal(worker, &p.keys.Send, []aead.Packet{{Data: msg[header:]}})
	_, err := p.conn.Write(msg)
	return err
}
