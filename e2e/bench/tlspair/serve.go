package tlspair

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
)

// Serve runs a proxy of crypto/tls until ctx is done. dir is the folder of Prepare.
func Serve(ctx context.Context, dir string, end End, forwards ...Forward) error {
	config, err := tlsConfig(dir, end)
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	defer all.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	ended := make(chan error, len(forwards))
	for _, f := range forwards {
		l, err := net.Listen("tcp", f.From.String())
		if err != nil {
			return err
		}
		context.AfterFunc(ctx, func() { l.Close() })
		all.Go(func() { ended <- serve(ctx, l, config, end, f.To.String(), &all) })
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-ended:
		return err
	}
}

// tlsConfig returns the configuration of the proxy at an end.
func tlsConfig(dir string, end End) (*tls.Config, error) {
	name := map[End]string{Near: client, Far: "apiserver"}[end]
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, name+".crt"),
		filepath.Join(dir, name+".key"))
	if err != nil {
		return nil, fmt.Errorf("proxy at %s: %w", end, err)
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return nil, err
	}
	trusted := x509.NewCertPool()
	if !trusted.AppendCertsFromPEM(ca) {
		return nil, errors.New("no certificate in ca.crt")
	}

	return &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: trusted, ClientCAs: trusted,
		ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13,
		ClientSessionCache: tls.NewLRUClientSessionCache(0)}, nil
}

// serve accepts connections until l is closed, and forwards each to an address in a goroutine of
// all.
func serve(ctx context.Context, l net.Listener, config *tls.Config, end End, to string,
	all *sync.WaitGroup) error {
	for {
		from, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		all.Go(func() {
			if end == Far {
				from = tls.Server(from, config)
			}
			// A failure ends the connection, which its client reports.
			_ = forward(ctx, from, func() (net.Conn, error) {
				if end == Near {
					return (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", to)
				}
				return (&net.Dialer{}).DialContext(ctx, "tcp", to)
			})
		})
	}
}

// forward copies between a connection and the connection that dial returns, until either ends.
func forward(ctx context.Context, from net.Conn, dial func() (net.Conn, error)) error {
	defer from.Close()
	if c, is := from.(*tls.Conn); is {
		if err := c.HandshakeContext(ctx); err != nil {
			return err
		}
	}
	to, err := dial()
	if err != nil {
		return err
	}
	end := func() { from.Close(); to.Close() }
	defer end()
	defer context.AfterFunc(ctx, end)()

	var back sync.WaitGroup
	defer back.Wait()
	back.Go(func() {
		defer end()
		_, _ = io.Copy(from, to) // ends with either connection
	})
	_, err = io.Copy(to, from)
	end()
	return err
}
