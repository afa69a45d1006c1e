package cyclonus_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/netns"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// answerLimit bounds the wait for one answer that is not expected, and expectedLimit of one
// that is. A missing answer that is expected is asked for again.
const answerLimit, expectedLimit = 500 * time.Millisecond, 10 * time.Second

// flowKey names the flows from a pod to a port of another one.
type flowKey struct {
	from, to, proto string
	port            uint16
}

// servedPod is a pod of the lab that sends back what its served ports receive.
type servedPod struct {
	*lab.Pod
	t      *testing.T
	canary string

	mu       sync.Mutex
	accepted []net.Conn // and not yet closed by hangUp
}

// serve serves until the test ends.
func (p *servedPod) serve() {
	for _, port := range served {
		at := netip.AddrPortFrom(p.Addrs[0], port).String()
		errtest.Must(p.t, netns.Do(p.NetNS(), func() error {
			l, err := net.Listen("tcp", at)
			if err != nil {
				return err
			}
			p.t.Cleanup(func() {
				l.Close()
				p.hangUp()
			})
			go p.serveTCP(l)
			u, err := net.ListenPacket("udp", at)
			if err != nil {
				return err
			}
			p.t.Cleanup(func() { u.Close() })
			go serveUDP(u)
			return nil
		}))
	}
}

// serveTCP accepts connections until l is closed.
func (p *servedPod) serveTCP(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		p.accepted = append(p.accepted, c)
		p.mu.Unlock()
		go func() {
			defer c.Close()
			_, _ = io.Copy(c, c)
		}()
	}
}

// hangUp resets the connections that the pod has accepted.
func (p *servedPod) hangUp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.accepted {
		reset(c)
	}
	p.accepted = nil
}

func serveUDP(c net.PacketConn) {
	b := make([]byte, 1<<10)
	for {
		n, from, err := c.ReadFrom(b)
		if err != nil {
			return
		}
		_, _ = c.WriteTo(b[:n], from)
	}
}

// dial opens a flow, and reports whether it is answered within a limit.
func (p *servedPod) dial(proto string, to netip.AddrPort,
	limit time.Duration) (f *triedFlow, ok bool) {
	f = &triedFlow{canary: p.canary}
	err := netns.Do(p.NetNS(), func() (err error) {
		f.Conn, err = net.DialTimeout(proto, to.String(), limit)
		return err
	})
	return f, err == nil && f.answered(limit)
}

// triedFlow is an open flow. It is for one goroutine at a time.
type triedFlow struct {
	net.Conn
	canary string
	number int
	got    []byte
}

// answered sends a message, and reports whether the server sends it back within a limit.
func (f *triedFlow) answered(limit time.Duration) bool {
	f.number++
	message := fmt.Appendf(nil, "%s %06d", f.canary, f.number)
	if _, err := f.Write(message); err != nil {
		return false
	}
	_ = f.SetReadDeadline(time.Now().Add(limit))
	b := make([]byte, 1<<10)
	for f.got = nil; !bytes.Contains(f.got, message); {
		n, err := f.Read(b)
		if err != nil {
			return false
		}
		f.got = append(f.got, b[:n]...)
	}
	return true
}

// connect opens a flow between each two pods to each port, and waits until all are answered. The
// nodes forget all earlier connections first.
func (w *triedLab) connect(ctx context.Context, t *testing.T, ports map[string]uint16) {
	t.Helper()
	for _, n := range w.Nodes() {
		errtest.Must(t, n.Do(nettest.ForgetConnections))
	}
	w.flows = map[flowKey]*triedFlow{}
	for from := range w.pods {
		for to := range w.pods {
			for proto, port := range ports {
				if from != to {
					w.flows[flowKey{from, to, proto, port}] = nil
				}
			}
		}
	}

	var mu sync.Mutex
	var errs []error
	w.each(func(key flowKey, _ *triedFlow) {
		err := lab.Until(ctx, 40*time.Second, func() error {
			f, ok := w.dial(key, answerLimit)
			if !ok {
				f.close()
				return fmt.Errorf("%v is not answered without policies", key)
			}
			mu.Lock()
			defer mu.Unlock()
			w.flows[key] = f
			return nil
		})
		mu.Lock()
		defer mu.Unlock()
		errs = append(errs, err)
	})
	errtest.Must(t, errs...)
}

func (w *triedLab) dial(key flowKey, limit time.Duration) (*triedFlow, bool) {
	return w.pods[key.from].dial(key.proto,
		netip.AddrPortFrom(w.pods[key.to].Addrs[0], key.port), limit)
}

// close closes this end of the flow.
func (f *triedFlow) close() {
	if f.Conn != nil {
		reset(f.Conn)
	}
}

// reset closes a socket. It resets a TCP connection, so that this end does not send packets of it
// again, which conntrack would take for a new connection, perhaps of the other direction.
func reset(c net.Conn) {
	if c, ok := c.(*net.TCPConn); ok {
		_ = c.SetLinger(0)
	}
	c.Close()
}

// each calls do for all flows concurrently.
func (w *triedLab) each(do func(key flowKey, f *triedFlow)) {
	keys := make(map[flowKey]*triedFlow, len(w.flows))
	for key, f := range w.flows {
		keys[key] = f
	}
	var all sync.WaitGroup
	for key, f := range keys {
		all.Go(func() { do(key, f) })
	}
	all.Wait()
}

// hangUp closes both ends of all flows. The reset of one end alone may be lost: packets of a flow
// that a policy ended are dropped for some time.
func (w *triedLab) hangUp() {
	for _, p := range w.pods {
		p.hangUp()
	}
	for _, f := range w.flows {
		if f != nil {
			f.close()
		}
	}
}

// becomes waits until the flows that ended has are not answered, and all others are: those that are
// open, and new ones. An open flow that between has need not be answered.
func (w *triedLab) becomes(ctx context.Context, ended, between map[flowKey]bool) error {
	return lab.Until(ctx, 40*time.Second, func() error {
		var mu sync.Mutex
		var wrong []string
		w.each(func(key flowKey, f *triedFlow) {
			limit := expectedLimit
			if ended[key] {
				limit = answerLimit
			}
			goesOn := f.answered(limit)
			again, allowed := w.dial(key, limit)
			again.close()
			if goesOn == ended[key] && (goesOn || !between[key]) || allowed == ended[key] {
				mu.Lock()
				defer mu.Unlock()
				wrong = append(wrong, fmt.Sprintf("%v: ends %t is predicted; it goes on %t, a new one is "+
					"answered %t", key, ended[key], goesOn, allowed))
			}
		})
		if len(wrong) > 0 {
			return fmt.Errorf("%d flows differ:\n%s", len(wrong),
				strings.Join(wrong[:min(len(wrong), 5)], "\n"))
		}
		return nil
	})
}
