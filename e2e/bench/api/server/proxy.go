package server

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"sync"
	"sync/atomic"
)

// CopyTCP runs a TCP proxy at addr until ctx is done. It distributes connections to the servers
// round-robin and copies their bytes, by splice(2) as net.TCPConn does.
func CopyTCP(ctx context.Context, addr string, servers []netip.AddrPort) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	return First(ctx, func() error {
		for turn := 0; ; turn++ {
			c, err := l.Accept()
			if err != nil {
				return err
			}
			to := servers[turn%len(servers)].String()
			go func() { _ = join(ctx, c.(*net.TCPConn), to) }()
		}
	})
}

// join connects to the server at to, and copies both ways until both ends have closed.
func join(ctx context.Context, near *net.TCPConn, to string) error {
	defer near.Close()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", to)
	if err != nil {
		return err
	}
	far := c.(*net.TCPConn)
	defer far.Close()

	var wg sync.WaitGroup
	var errs [2]error
	for i, way := range [][2]*net.TCPConn{{near, far}, {far, near}} {
		wg.Go(func() {
			_, err := io.Copy(way[1], way[0])
			errs[i] = errors.Join(err, way[1].CloseWrite())
		})
	}
	wg.Wait()
	return errors.Join(errs[:]...)
}

// Impersonate runs an HTTP proxy at addr until ctx is done, in the shape of KubeGateway. It
// terminates the client's TLS and distributes requests to the servers round-robin, over its own TLS
// connections. A header of each request names the user of the client's certificate.
func Impersonate(ctx context.Context, dir, addr string, servers []netip.AddrPort) error {
	near, err := serving(dir)
	if err != nil {
		return err
	}
	far, err := Credentials(dir, "proxy")
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}

	var turn atomic.Uint64
	proxy := &httputil.ReverseProxy{
		Transport: &http.Transport{TLSClientConfig: far, ForceAttemptHTTP2: true,
			DisableCompression: true},
		Rewrite: func(r *httputil.ProxyRequest) {
			to := servers[turn.Add(1)%uint64(len(servers))]
			r.SetURL(&url.URL{Scheme: "https", Host: to.String()})
			r.Out.Header.Set(headerImpersonate, r.In.TLS.PeerCertificates[0].Subject.CommonName)
		},
	}
	return First(ctx, func() error {
		return (&http.Server{Handler: proxy, TLSConfig: near}).ServeTLS(l, "", "")
	})
}
