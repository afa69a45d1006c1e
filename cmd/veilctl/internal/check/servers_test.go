package check

import (
	"encoding/pem"
	"net"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// certificateNames only accepts certificates that the given CA signed.
func TestCertificateNames(t *testing.T) {
	s := httptest.NewTLSServer(nil) // its certificate names 127.0.0.1 and ::1, and is its own CA
	defer s.Close()
	at := s.Listener.Addr().(*net.TCPAddr).AddrPort()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})

	names, err := certificateNames(t.Context(), at, ca)
	if err != nil || !slices.Equal(names, []netip.Addr{netip.MustParseAddr("127.0.0.1"),
		netip.IPv6Loopback()}) {
		t.Errorf("names %v, %v", names, err)
	}

	if names, err := certificateNames(t.Context(), at, []byte("x")); len(names) > 0 || err == nil ||
		!strings.Contains(err.Error(), "has no certificate") {
		t.Errorf("by another CA: names %v, %v", names, err)
	}
}
