package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
)

// ObjectPath is the path that clients GET.
const ObjectPath = "/api/v1/namespaces/default/configmaps/bench"

// Users in the certificates of clients and of the proxy, and names of headers.
const (
	User      = "system:node:bench"
	ProxyUser = "bench:proxy"

	HeaderUser        = "Bench-User"
	HeaderServer      = "Bench-Server"
	headerImpersonate = "Impersonate-User"
)

// Object is the JSON of the ConfigMap that the servers return.
var Object = func() []byte {
	b, err := json.Marshal(map[string]any{
		"kind": "ConfigMap", "apiVersion": "v1",
		"metadata": map[string]any{"name": "bench", "namespace": "default", "resourceVersion": "1"},
		"data":     map[string]string{"value": strings.Repeat("kubeveil", 100)},
	})
	if err != nil {
		panic(err)
	}
	return b
}()

// server is an API server in memory.
type server struct {
	name     string
	requests atomic.Int64
}

// ServeHTTP answers a GET of the object. Headers of the answer name the server and the user: the
// user of the client's certificate, or the user that the proxy impersonates.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.requests.Add(1)
	who := r.TLS.PeerCertificates[0].Subject.CommonName
	if other := r.Header.Get(headerImpersonate); other != "" {
		if who != ProxyUser {
			http.Error(w, "users do not impersonate", http.StatusForbidden)
			return
		}
		who = other
	}
	if r.Method != http.MethodGet || r.URL.Path != ObjectPath {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set(HeaderUser, who)
	h.Set(HeaderServer, s.name)
	_, _ = w.Write(Object)
}

// Serve runs an API server at addrs until ctx is done. dir is the folder with the certificates. The
// socket name.sock in dir returns the number of requests that the server received.
func Serve(ctx context.Context, dir, name string, addrs ...string) error {
	s := &server{name: name}
	config, err := serving(dir)
	if err != nil {
		return err
	}
	control, err := net.Listen("unix", Socket(dir, name))
	if err != nil {
		return err
	}
	counts := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, s.requests.Load())
	})
	all := []func() error{func() error { return (&http.Server{Handler: counts}).Serve(control) }}
	for _, addr := range addrs {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return errors.Join(err, control.Close())
		}
		all = append(all, func() error {
			return (&http.Server{Handler: s, TLSConfig: config.Clone()}).ServeTLS(l, "", "")
		})
	}
	return First(ctx, all...)
}

// Socket returns the path of the socket at which the server called name returns its number of
// requests.
func Socket(dir, name string) string { return filepath.Join(dir, name+".sock") }

// First calls all fns at the same time. It returns the error of the function that ends first, or
// nil when ctx is done.
func First(ctx context.Context, fns ...func() error) error {
	errs := make(chan error, len(fns))
	for _, fn := range fns {
		go func() { errs <- fn() }()
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-errs:
		return err
	}
}

// serving returns the TLS configuration of a server that requires client certificates.
func serving(dir string) (*tls.Config, error) {
	config, err := Credentials(dir, "apiserver")
	if err != nil {
		return nil, err
	}
	config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, config.RootCAs
	config.NextProtos = []string{"h2"}
	return config, nil
}

// Credentials returns a TLS configuration with the certificate called name in dir, which trusts the
// authority ca.crt in dir.
func Credentials(dir, name string) (*tls.Config, error) {
	file := func(end string) string { return filepath.Join(dir, name+end) }
	cert, err := tls.LoadX509KeyPair(file(".crt"), file(".key"))
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bytes.TrimSpace(ca)) {
		return nil, errors.New("no certificate in ca.crt")
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert},
		RootCAs: roots}, nil
}
