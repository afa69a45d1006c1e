package api

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/big"
	"net"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
)

// A tenant with many malformed objects neither fills a status nor hides a failing request from it.
func TestProblemsOfObjectsAreBounded(t *testing.T) {
	s := &Server{Log: slog.New(slog.DiscardHandler)}
	s.Report("read services", errors.New("refused"))
	for i := range 1000 {
		s.Note(fmt.Sprintf("NetworkPolicy shop/%04d", i), "malformed")
	}
	got := s.Problems()
	if len(got) != maxObjects+2 || !slices.Contains(got, "read services: refused") ||
		!strings.HasPrefix(got[len(got)-1], "936 more objects have problems") {
		t.Errorf("%d problems: %.300q", len(got), got)
	}
	for i := range 999 {
		s.Note(fmt.Sprintf("NetworkPolicy shop/%04d", i), "")
	}
	if got = s.Problems(); !slices.Equal(got, []string{"NetworkPolicy shop/0999: malformed",
		"read services: refused"}) {
		t.Errorf("problems %q", got)
	}
}

// A node whose clock is wrong at boot does not believe the certificate of the API server. Its
// status names the clock, and its log has one line, although each attempt has another time.
func TestWrongClockIsNamed(t *testing.T) {
	for clock, valid := range map[string][2]time.Duration{
		"behind": {time.Hour, 2 * time.Hour}, "ahead": {-2 * time.Hour, -time.Hour}} {
		t.Run(clock, func(t *testing.T) {
			now := time.Now()
			pair, text := certificate(t, now.Add(valid[0]), now.Add(valid[1]))
			server := httptest.NewUnstartedServer(nil)
			server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
			server.Config.ErrorLog = log.New(io.Discard, "", 0)
			server.StartTLS()
			defer server.Close()

			var lines bytes.Buffer
			s, err := New(&rest.Config{Host: server.URL,
				TLSClientConfig: rest.TLSClientConfig{CAData: text}},
				slog.New(slog.NewTextHandler(&lines, nil)))
			errtest.Must(t, err)
			for range 2 {
				_, err := s.Read(t.Context(), object.Nodes, "node-1")
				s.Report("read nodes", Explain("read", object.Nodes, err))
			}
			if got := s.Problems(); len(got) != 1 ||
				!strings.Contains(got[0], "the time of this node's clock: set the clock") {
				t.Errorf("problems %q", got)
			}
			if n := strings.Count(lines.String(), "has a problem"); n != 1 {
				t.Errorf("logged %d times:\n%s", n, lines.String())
			}
		})
	}
}

// certificate returns a certificate of 127.0.0.1 that signs itself, also as PEM.
func certificate(t *testing.T, from, until time.Time) (tls.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	errtest.Must(t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: from, NotAfter: until,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	errtest.Must(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
