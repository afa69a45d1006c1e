package tlspair

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/e2e/lab/authority"
)

// Forward is a port of a proxy and the address to which the proxy forwards its connections.
type Forward struct {
	From netip.AddrPort `json:"from"`
	To   netip.AddrPort `json:"to"`
}

// End is the end of a pair at which a proxy is.
type End string

const (
	// Near is the proxy at the client: it forwards plain connections over TLS.
	Near End = "near"
	// Far is the proxy at the server: it forwards TLS connections in clear.
	Far End = "far"
)

// Prepare writes the keys and certificates of both proxies to the folder dir. far holds the
// addresses of the proxy at the server.
func Prepare(dir string, far ...netip.Addr) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	a, err := authority.New(dir)
	if err != nil {
		return err
	}
	if err := errors.Join(a.Server(far), a.Client(client, client)); err != nil {
		return err
	}

	// Both haproxy use and trust the certificate of the authority. One file has it and its key.
	cert, err1 := os.ReadFile(filepath.Join(dir, "ca.crt"))
	key, err2 := os.ReadFile(filepath.Join(dir, "ca.key"))
	return errors.Join(err1, err2, os.WriteFile(filepath.Join(dir, "node.pem"),
		slices.Concat(cert, key), 0o600))
}

// client is the name of the certificate of the Go proxy at the client.
const client = "client"

// haproxyOptions are haproxy's TLS options of both proxies: mutual authentication, one cipher suite.
const haproxyOptions = " ssl crt %[1]s/node.pem ca-file %[1]s/node.pem verify required " +
	"ssl-min-ver TLSv1.3 ciphersuites TLS_AES_128_GCM_SHA256"

// HAProxy returns the configuration of haproxy as a proxy of a pair. dir is the folder of Prepare.
// buffer is the size of haproxy's buffers in bytes, of which each connection has two; 0 means
// haproxy's default.
func HAProxy(dir string, end End, buffer int, forwards ...Forward) string {
	var b strings.Builder
	b.WriteString("global\n  maxconn 8000\n  nbthread 2\n")
	if buffer > 0 {
		fmt.Fprintf(&b, "  tune.bufsize %d\n", buffer)
	}
	b.WriteString("defaults\n  mode tcp\n  maxconn 8000\n  timeout connect 10s\n" +
		"  timeout client 1h\n  timeout server 1h\n")

	tls := fmt.Sprintf(haproxyOptions, dir)
	options := map[End][2]string{Near: {"", tls}, Far: {tls, ""}}[end]
	for i, f := range forwards {
		fmt.Fprintf(&b, "listen l%d\n  bind %s%s\n  server other %s%s\n", i, f.From, options[0],
			f.To, options[1])
	}
	return b.String()
}
