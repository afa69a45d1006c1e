package engine

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"

	"github.com/kubeveil/kubeveil/e2e/bench/tlspair"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

// A pair of proxies carries TCP like a service mesh: pod a connects to the proxy of its node, which
// connects by mutual TLS 1.3 to the proxy of the other node. Each connection costs a handshake, and
// the pair carries TCP only.

const (
	// proxied is the port of the server in pod b, and of the proxy of node a.
	proxied = 9000
	// tlsPort is the port of the proxy of node b.
	tlsPort = 9443
)

// proxyBuffer is the size of haproxy's buffers, with which it has its highest throughput.
const proxyBuffer = 64 << 10

// startProxies starts the proxies of both nodes.
func (w *world) startProxies(ctx context.Context) error {
	wire := netip.AddrPortFrom(netip.MustParseAddr("198.18.0.2"), tlsPort)
	if err := tlspair.Prepare(w.dir, wire.Addr()); err != nil {
		return fmt.Errorf("make certificates: %w", err)
	}

	for i, config := range []string{
		tlspair.HAProxy(w.dir, tlspair.Near, proxyBuffer, tlspair.Forward{
			From: netip.AddrPortFrom(netip.MustParseAddr("198.19.1.1"), proxied), To: wire}),
		tlspair.HAProxy(w.dir, tlspair.Far, proxyBuffer, tlspair.Forward{From: wire,
			To: netip.AddrPortFrom(netip.MustParseAddr(podAddr(podB)), proxied)}),
	} {
		file := filepath.Join(w.dir, strconv.Itoa(i)+".cfg")
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			return err
		}
		d, err := w.spaces[i].Start(ctx, suite.Program{Argv: []string{"haproxy", "-db", "-f", file},
			Ports: []uint16{[]uint16{proxied, tlsPort}[i]}})
		if err != nil {
			return err
		}
		w.proxies = append(w.proxies, d)
	}
	return nil
}
