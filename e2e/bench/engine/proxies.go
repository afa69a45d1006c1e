package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/kubeveil/kubeveil/e2e/lab/authority"
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

// proxyConfig is the format of haproxy's configuration. Its arguments are the address to bind and
// the server, each with its options. The buffers hold 64 KiB, which gives haproxy its highest
// throughput.
const proxyConfig = `global
  maxconn 2000
  nbthread 2
  tune.bufsize 65536
defaults
  mode tcp
  timeout connect 10s
  timeout client 1h
  timeout server 1h
listen pods
  bind %s
  server other %s
`

// tlsOptions are haproxy's TLS options of both proxies: mutual authentication, one cipher suite.
const tlsOptions = "ssl crt %[1]s/node.pem ca-file %[1]s/node.pem verify required " +
	"ssl-min-ver TLSv1.3 ciphersuites TLS_AES_128_GCM_SHA256"

// startProxies starts the proxies of both nodes.
func (w *world) startProxies(ctx context.Context) error {
	if err := os.MkdirAll(w.dir, 0o700); err != nil {
		return err
	}
	if err := writeCertificate(w.dir); err != nil {
		return fmt.Errorf("make certificate: %w", err)
	}

	tls := fmt.Sprintf(tlsOptions, w.dir)
	for i, config := range []string{
		fmt.Sprintf(proxyConfig, fmt.Sprintf("198.19.1.1:%d", proxied),
			fmt.Sprintf("198.18.0.2:%d %s", tlsPort, tls)),
		fmt.Sprintf(proxyConfig, fmt.Sprintf("198.18.0.2:%d %s", tlsPort, tls),
			fmt.Sprintf("%s:%d", podAddr(podB), proxied)),
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

// writeCertificate writes a key and its self-signed certificate into one file. Both proxies use and
// trust this certificate.
func writeCertificate(dir string) error {
	if _, err := authority.New(dir); err != nil {
		return err
	}
	cert, err1 := os.ReadFile(filepath.Join(dir, "ca.crt"))
	key, err2 := os.ReadFile(filepath.Join(dir, "ca.key"))
	return errors.Join(err1, err2, os.WriteFile(filepath.Join(dir, "node.pem"),
		slices.Concat(cert, key), 0o600))
}
