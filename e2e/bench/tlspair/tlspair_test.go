package tlspair

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"

	"github.com/kubeveil/kubeveil/e2e/bench/service/openloop"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

// A byte passes both proxies in Go. The proxy at the server refuses clients without a certificate.
func TestPairInGo(t *testing.T) {
	dir := t.TempDir()
	loopback := netip.MustParseAddr("127.0.0.1")
	errtest.Must(t, Prepare(dir, loopback))
	var all sync.WaitGroup
	defer all.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		errtest.Must(t, err)
		context.AfterFunc(ctx, func() { l.Close() })
		return l
	}

	server, far, near := listen(), listen(), listen()
	all.Go(func() { errtest.Check(t, openloop.Echo(server)) })
	for _, p := range []struct {
		end      End
		from, to net.Listener
	}{{Far, far, server}, {Near, near, far}} {
		config, err := tlsConfig(dir, p.end)
		errtest.Must(t, err)
		all.Go(func() {
			errtest.Check(t, serve(ctx, p.from, config, p.end, p.to.Addr().String(), &all))
		})
	}

	c, err := net.Dial("tcp", near.Addr().String())
	errtest.Must(t, err)
	defer c.Close()
	errtest.Must(t, errtest.Of(c.Write([]byte("?"))))
	b := make([]byte, 1)
	if _, err := io.ReadFull(c, b); err != nil || b[0] != '?' {
		t.Errorf("%q, %v", b, err)
	}

	config, err := tlsConfig(dir, Near)
	errtest.Must(t, err)
	config.Certificates = nil
	stranger, err := tls.Dial("tcp", far.Addr().String(), config)
	errtest.Must(t, err) // TLS 1.3 refuses a client after the client's handshake
	defer stranger.Close()
	_, _ = stranger.Write([]byte("?"))
	var refused tls.AlertError
	if _, err := stranger.Read(b); !errors.As(err, &refused) && !isAlert(err) {
		t.Errorf("a client without a certificate: %q, %v", b, err)
	}
}

// isAlert reports whether err is an alert of the other end.
func isAlert(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error"
}
