package wire

import (
	"net/netip"
	"sync"
	"unique"
)

const (
	// maxNames bounds the names of a Names, and maxName the bytes of one of them: together 8 MiB.
	maxNames = 32768
	maxName  = 253
)

// Names holds texts that occur in many objects, such as names of nodes, so that these objects share
// their memory. It is safe for concurrent use. A nil Names shares nothing.
type Names struct {
	mu     sync.Mutex
	byText map[string]unique.Handle[string]
}

// of returns b as a string. A text longer than maxName is not shared. If there are maxNames texts,
// it forgets them; the strings stay valid.
func (n *Names) of(b []byte) string {
	if n == nil || len(b) == 0 || len(b) > maxName {
		return string(b)
	}
	return n.handle(b).Value()
}

// handle is of for a text that is kept in many places.
func (n *Names) handle(b []byte) unique.Handle[string] {
	if n == nil || len(b) > maxName {
		return unique.Make(string(b))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if s, has := n.byText[string(b)]; has {
		return s
	}
	if n.byText == nil || len(n.byText) == maxNames {
		n.byText = map[string]unique.Handle[string]{}
	}
	s := unique.Make(string(b))
	n.byText[s.Value()] = s
	return s
}

// parseAddr parses an address. Unlike netip.ParseAddr, it does not allocate for IPv4. A zone is an
// error.
func parseAddr(b []byte) (netip.Addr, bool) {
	if a, ok := parseIPv4(b); ok {
		return a, true
	}
	a, err := netip.ParseAddr(string(b))
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, false
	}
	return a.Unmap(), true
}

// parseIPv4 parses four decimal numbers without leading zeros. It returns false for any other text.
func parseIPv4(b []byte) (netip.Addr, bool) {
	var octets [4]byte
	at, digits, value := 0, 0, 0
	for i := 0; i <= len(b); i++ {
		if i == len(b) || b[i] == '.' {
			if digits == 0 || at == len(octets) {
				return netip.Addr{}, false
			}
			octets[at] = byte(value)
			at, digits, value = at+1, 0, 0
			continue
		}
		if b[i] < '0' || b[i] > '9' || digits > 0 && value == 0 {
			return netip.Addr{}, false
		}
		digits, value = digits+1, 10*value+int(b[i]-'0')
		if value > 255 {
			return netip.Addr{}, false
		}
	}
	return netip.AddrFrom4(octets), at == len(octets)
}
