package config_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/config"
)

func TestOutsideClosesTheNetworksOfNodes(t *testing.T) {
	const ranges = good + "nodeRanges: [192.0.2.0/24, 2001:db8::/64]\n"
	for name, tt := range map[string]struct {
		text string
		want string // what is closed
		open string // the text of status about the exception
	}{
		"neither":          {good, "", "set nodeRanges, and outside"},
		"not written":      {ranges, "", "write outside"},
		"written as empty": {ranges + "outside: []\n", "192.0.2.0/24 2001:db8::/64", ""},
		"a gateway": {ranges + "outside: [192.0.2.1/32]\n",
			"192.0.2.0/32 192.0.2.2/31 192.0.2.4/30 192.0.2.8/29 192.0.2.16/28 192.0.2.32/27 " +
				"192.0.2.64/26 192.0.2.128/25 2001:db8::/64", ""},
		"half a network": {ranges + "outside: [192.0.2.128/25]\n", "192.0.2.0/25 2001:db8::/64",
			""},
		"a whole network": {ranges + "outside: ['2001:db8::/64']\n", "192.0.2.0/24", ""},
		"two of one network": {ranges + "outside: [192.0.2.0/26, 192.0.2.128/26]\n",
			"192.0.2.64/26 192.0.2.192/26 2001:db8::/64", ""},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := config.Parse("node-1", []byte(tt.text), nil)
			errtest.Must(t, err)

			var got []string
			for _, p := range c.Closed() {
				got = append(got, p.String())
			}

			if strings.Join(got, " ") != tt.want {
				t.Errorf("closed %v, want %s", got, tt.want)
			}
			if open := c.OpenNodeRanges(); !strings.Contains(open, tt.open) ||
				(open == "") != (tt.open == "") {
				t.Errorf("open %q, want %q", open, tt.open)
			}
		})
	}
}

func TestOutsideIsJudged(t *testing.T) {
	for name, tt := range map[string]struct{ text, want string }{
		"no node ranges": {"outside: [192.0.2.1/32]\n",
			"outside: has no effect without nodeRanges; set nodeRanges"},
		"empty, no ranges": {"outside: []\n", "has no effect without nodeRanges"},
		"in no network": {"nodeRanges: [192.0.2.0/24]\noutside: [198.51.100.1/32]\n",
			"outside[0]: 198.51.100.1/32 is not inside nodeRanges"},
		"more than a network": {"nodeRanges: [192.0.2.0/24]\noutside: [192.0.0.0/16]\n",
			"outside[0]: 192.0.0.0/16 is not inside nodeRanges"},
		"bits beyond": {"nodeRanges: [192.0.2.0/24]\noutside: [192.0.2.1/24]\n",
			"outside[0]: 192.0.2.1/24 has bits set"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := config.Parse("node-1", []byte(good+tt.text), nil)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}

// An address is closed exactly when it is in a network and in no hole.
func TestClosedRangesAreNetworksWithoutHoles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		prefix := func(label string, bits int) netip.Prefix {
			b := rapid.Byte().Draw(t, label)
			return netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, b}),
				rapid.IntRange(bits, 32).Draw(t, label+" bits")).Masked()
		}
		c := config.Config{NodeRanges: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
			Outside: []netip.Prefix{}}
		for range rapid.IntRange(0, 4).Draw(t, "holes") {
			c.Outside = append(c.Outside, prefix("hole", 24))
		}
		closed := c.Closed()
		for i := range 256 {
			a := netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
			in := func(p netip.Prefix) bool { return p.Contains(a) }
			if slices.ContainsFunc(closed, in) == slices.ContainsFunc(c.Outside, in) {
				t.Fatalf("%s: closed %v, outside %v", a, closed, c.Outside)
			}
		}
		for i, p := range closed {
			if slices.ContainsFunc(closed[i+1:], p.Overlaps) {
				t.Fatalf("%s overlaps another of %v", p, closed)
			}
		}
	})
}

func TestLinkLocalAddressesAreClosed(t *testing.T) {
	clouds := nettest.Addrs("169.254.169.254", "169.254.169.253", "169.254.169.123")
	for name, tt := range map[string]struct {
		text string
		open []netip.Addr
	}{
		"not written":      {"", clouds},
		"written as empty": {"linkLocalOutside: []\n", nil},
		"one address": {"linkLocalOutside: [169.254.20.10/32]\n",
			nettest.Addrs("169.254.20.10")},
		"all": {"linkLocalOutside: [169.254.0.0/16]\n",
			append(clouds, nettest.Addrs("169.254.0.0", "169.254.20.10", "169.254.255.255")...)},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := config.Parse("node-1", []byte(good+tt.text), nil)
			errtest.Must(t, err)

			for _, a := range append(clouds, nettest.Addrs("169.254.0.0", "169.254.1.1",
				"169.254.20.10", "169.254.169.252", "169.254.169.255", "169.254.255.255")...) {
				closed := slices.ContainsFunc(c.ClosedLinkLocal(),
					func(p netip.Prefix) bool { return p.Contains(a) })
				if want := name != "all" && !slices.Contains(tt.open, a); closed != want {
					t.Errorf("%s is closed: %t, want %t", a, closed, want)
				}
			}
		})
	}
}

func TestLinkLocalOutsideIsJudged(t *testing.T) {
	for name, tt := range map[string]struct{ text, want string }{
		"outside the cluster": {"[198.51.100.1/32]", "need no entry"},
		"wider":               {"[169.254.0.0/15]", "is not inside 169.254.0.0/16"},
		"all":                 {"[0.0.0.0/0]", "is not inside 169.254.0.0/16"},
		"bits beyond":         {"[169.254.169.254/24]", "write 169.254.169.0/24"},
		"IPv6":                {"['fe80::1/128']", "no router forwards"},
		"no range":            {"[169.254.169.254]", "is not a range such as"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := config.Parse("node-1", []byte(good+"linkLocalOutside: "+tt.text+"\n"), nil)
			if err == nil || !strings.Contains(err.Error(), "linkLocalOutside[0]: ") ||
				!strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}
