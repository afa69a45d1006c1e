package api

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

// authority is a CA that makes certificates of servers.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	a := authority{}
	a.cert, a.key = a.sign(t, &x509.Certificate{IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign})
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
	return a
}

// sign fills in a template and signs it, by itself if there is no CA yet.
func (a authority) sign(t *testing.T, c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	errtest.Must(t, err)
	c.SerialNumber, c.Subject = big.NewInt(1), pkix.Name{CommonName: "test"}
	c.NotBefore = time.Now().Add(-time.Hour)
	if c.NotAfter.IsZero() {
		c.NotAfter = time.Now().Add(time.Hour)
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	errtest.Must(t, err)
	if c, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return c, key
}

func TestServerCertificatesAreVerified(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	addr := net.ParseIP("198.18.0.1")

	for name, c := range map[string]struct {
		ca   authority
		cert x509.Certificate
		ok   bool
	}{
		"by the address":             {ours, x509.Certificate{IPAddresses: []net.IP{addr}}, true},
		"by the name of the service": {ours, x509.Certificate{DNSNames: serviceNames[:1]}, true},
		"by neither":                 {ours, x509.Certificate{DNSNames: []string{"db.example"}}, false},
		"by another CA":              {theirs, x509.Certificate{IPAddresses: []net.IP{addr}}, false},
		"expired": {ours, x509.Certificate{IPAddresses: []net.IP{addr},
			NotAfter: time.Now().Add(-time.Minute)}, false},
		"for clients": {ours, x509.Certificate{IPAddresses: []net.IP{addr},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			cert, _ := c.ca.sign(t, &c.cert)

			server := &Server{host: "198.18.0.1", tls: rest.TLSClientConfig{CAData: ours.pem}}
			err := server.ServerVerifier()(tls.ConnectionState{
				PeerCertificates: []*x509.Certificate{cert}})
			if (err == nil) != c.ok {
				t.Errorf("verified: %v, want success %t", err, c.ok)
			}
		})
	}
}

// A CA in a file may be replaced while veild runs.
func TestServersAreVerifiedByTheCAOfToday(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	file := filepath.Join(t.TempDir(), "ca.crt")
	verify := (&Server{host: "198.18.0.1",
		tls: rest.TLSClientConfig{CAFile: file}}).ServerVerifier()
	cert, _ := ours.sign(t, &x509.Certificate{DNSNames: serviceNames[:1]})
	state := tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}
	for _, c := range []struct {
		pem []byte
		ok  bool
	}{{theirs.pem, false}, {ours.pem, true}, {[]byte("none"), false}} {
		errtest.Must(t, os.WriteFile(file, c.pem, 0o600))
		if err := verify(state); (err == nil) != c.ok {
			t.Errorf("verified: %v, want success %t", err, c.ok)
		}
	}
}

func TestWithoutCANothingIsVerified(t *testing.T) {
	for name, c := range map[string]rest.TLSClientConfig{"no CA": {},
		"insecure": {Insecure: true, CAData: []byte("x")}} {
		if (&Server{tls: c}).ServerVerifier() != nil {
			t.Errorf("%s: certificates are verified", name)
		}
	}
}
