package config

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
)

// A DNS name is refused, with the addresses to write. Only names are looked up, and few of them.
func TestNamesAreRefusedWithTheirAddresses(t *testing.T) {
	asked := 0
	was := lookup
	t.Cleanup(func() { lookup = was })
	lookup = func(ctx context.Context, name string) ([]netip.Addr, error) {
		asked++
		if _, bounded := ctx.Deadline(); !bounded {
			t.Error("a look-up has no limit")
		}
		if name == "unknown.example" {
			return nil, errors.New("no such host")
		}
		return []netip.Addr{netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("192.0.2.1"),
			netip.MustParseAddr("::ffff:192.0.2.1")}, nil
	}

	for value, c := range map[string]struct {
		want  string
		asked int
	}{
		"api.example:6443": {`services.apiFrontends[0]: api.example:6443 is a name, and a DNS ` +
			`server must not choose the API servers; write its addresses, if they are right: ` +
			`"192.0.2.1:6443", "[2001:db8::1]:6443"`, 1},
		"unknown.example:6443": {"write its addresses (it cannot be resolved here: no such host)", 1},
		"api.example":          {`"api.example" is not an address with a port`, 0},
		"api.example:x":        {`"api.example:x" is not an address with a port`, 0},
		"bad name:6443":        {`"bad name:6443" is not an address with a port`, 0},
		"192.0.2.300:6443":     {`"192.0.2.300:6443" is not an address with a port`, 0},
	} {
		asked = 0
		_, err := Parse("node-1", []byte("serviceProxy: ebpf\nclusterRanges: [10.244.0.0/16]\n"+
			"serviceRanges: [10.96.0.0/12]\nservices: {apiFrontends: ['"+value+"']}"), nil)
		if err == nil || !strings.Contains(err.Error(), c.want) || asked != c.asked {
			t.Errorf("%s: %v, and %d look-ups; want %q and %d", value, err, asked, c.want, c.asked)
		}
	}

	asked = 0
	flag := givenFlag{"api-frontends", "services.apiFrontends",
		strings.Repeat("api.example:6443,", 2*MaxAPIFrontends)}
	if _, err := assemble("", nil, []givenFlag{flag}, nil); err == nil ||
		!strings.Contains(err.Error(),
			"flag --api-frontends: services.apiFrontends[0]: api.example") ||
		asked != MaxAPIFrontends {
		t.Errorf("%v, and %d look-ups", err, asked)
	}
}
