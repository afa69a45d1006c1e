package api

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
)

// serviceNames are names that each certificate of an API server should have, because pods connect
// to the API server by them.
var serviceNames = []string{"kubernetes.default.svc", "kubernetes.default", "kubernetes"}

// ServerVerifier returns a function that verifies the certificate of a connection to an API server
// with the CA of the credentials. The certificate must have the host name of the credentials, or a
// name of the service "kubernetes". A CA in a file is read each time, because it may be replaced.
// If the credentials have no CA, ServerVerifier returns nil, because no certificate can be
// verified.
func (s *Server) ServerVerifier() func(tls.ConnectionState) error {
	if s.tls.Insecure || len(s.tls.CAData) == 0 && s.tls.CAFile == "" {
		return nil
	}
	names := append([]string{s.host}, serviceNames...)
	if s.tls.ServerName != "" {
		names[0] = s.tls.ServerName
	}

	return func(state tls.ConnectionState) error {
		pem := s.tls.CAData
		if len(pem) == 0 {
			var err error
			if pem, err = os.ReadFile(s.tls.CAFile); err != nil {
				return fmt.Errorf("read the CA: %w", err)
			}
		}
		return verifyServer(state.PeerCertificates, pem, names)
	}
}

func verifyServer(chain []*x509.Certificate, pem []byte, names []string) error {
	if err := VerifyChain(chain, pem); err != nil {
		return err
	}
	for _, name := range names {
		if chain[0].VerifyHostname(name) == nil {
			return nil
		}
	}
	return fmt.Errorf("it has none of the names %s", strings.Join(names, ", "))
}

// VerifyChain verifies the certificate of a server, the first of chain, with a CA in PEM. It does
// not check the names in the certificate.
func VerifyChain(chain []*x509.Certificate, pem []byte) error {
	if len(chain) == 0 {
		return errors.New("the server has no certificate")
	}
	opts := x509.VerifyOptions{Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool()}
	if !opts.Roots.AppendCertsFromPEM(pem) {
		return errors.New("the CA of the credentials has no certificate")
	}
	for _, c := range chain[1:] {
		opts.Intermediates.AddCert(c)
	}
	_, err := chain[0].Verify(opts)
	return err
}
