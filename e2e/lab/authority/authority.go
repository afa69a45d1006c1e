// Package authority is a certificate authority of a lab or a benchmark: it writes the certificates
// and keys of a cluster's API servers and their clients into a folder, as PEM.
//
// Certificates are valid for a day. Start reading at New.
package authority

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// Authority is a certificate authority. It writes certificates and keys to its folder.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	dir  string
}

// Lifetime is the validity of certificates.
const Lifetime = 24 * time.Hour

// New returns a new Authority, and writes its certificate to dir/ca.crt.
func New(dir string) (*Authority, error) {
	a := &Authority{dir: dir, cert: &x509.Certificate{
		Subject: pkix.Name{CommonName: "lab-ca"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}}
	return a, a.issue("ca", a.cert)
}

// issue completes and signs a certificate, and writes it to name.crt and its key to name.key.
func (a *Authority) issue(name string, c *x509.Certificate) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	if c.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62)); err != nil {
		return err
	}

	now := time.Now()
	c.NotBefore, c.NotAfter = now.Add(-time.Hour), now.Add(Lifetime)
	parent, signer := a.cert, a.key
	if signer == nil {
		signer = key // the authority itself
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), signer)
	if err != nil {
		return fmt.Errorf("issue certificate %s: %w", name, err)
	}

	if a.key == nil {
		a.key = key
		if a.cert, err = x509.ParseCertificate(der); err != nil {
			return err
		}
	}

	if err := writePEM(filepath.Join(a.dir, name+".crt"), "CERTIFICATE", der); err != nil {
		return err
	}
	return writeKey(filepath.Join(a.dir, name+".key"), key)
}

// Server issues the certificate of the API servers as apiserver.crt and apiserver.key. It is valid
// for addrs, localhost and the names of the service kubernetes.
func (a *Authority) Server(addrs []netip.Addr) error {
	c := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames: []string{"localhost", "kubernetes", "kubernetes.default",
			"kubernetes.default.svc"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	for _, addr := range addrs {
		c.IPAddresses = append(c.IPAddresses, addr.AsSlice())
	}
	return a.issue("apiserver", c)
}

// Client issues a certificate for a user and its groups, as name.crt and name.key.
func (a *Authority) Client(name, user string, groups ...string) error {
	return a.issue(name, &x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// ServiceAccountKey writes a key that signs service-account tokens to sa.key.
func (a *Authority) ServiceAccountKey() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	return writeKey(filepath.Join(a.dir, "sa.key"), key)
}

func writeKey(path string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return writePEM(path, "EC PRIVATE KEY", der)
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
