package api

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/toolresult"
)

// New connections that hang when the program ends count as failed. A run may end soon after the
// held connections were closed, before the time limit of the new connections.
func TestNewConnectionsThatHangCount(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	var answered, hanging atomic.Int32
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if answered.Add(1) <= 2 { // one held and one new connection
			return
		}
		if hanging.Add(1) == 3 {
			end()
		}
		<-r.Context().Done()
	}))
	s.StartTLS()
	defer s.Close()
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())

	k := apiKeeper{to: s.Listener.Addr().String(), timeout: time.Second,
		config: &tls.Config{RootCAs: roots, ServerName: "example.com"}}
	got, err := k.keep(ctx, 1, 20*time.Millisecond)
	errtest.Must(t, err)
	r := got.(toolresult.KeptAPI)
	if r.Opened != 1 || len(r.Failed) < 3 || r.Asked != len(r.Failed)+1 {
		t.Errorf("opened %d; %d of %d new connections failed, want all but one", r.Opened,
			len(r.Failed), r.Asked)
	}
}

// With a length the program ends by itself, and does not count its held connections as closed.
func TestConnectionsAreHeldForALength(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer s.Close()
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())

	k := apiKeeper{to: s.Listener.Addr().String(), timeout: 10 * time.Second,
		length: 50 * time.Millisecond,
		config: &tls.Config{RootCAs: roots, ServerName: "example.com"}}
	got, err := k.keep(t.Context(), 2, 10*time.Millisecond)
	errtest.Must(t, err)
	if r := got.(toolresult.KeptAPI); r.Opened != 2 || len(r.Closed) != 0 || len(r.Failed) != 0 {
		t.Errorf("got %+v, want two connections that stay open", r)
	}
}
