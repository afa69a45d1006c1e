package config

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// lookupLimit bounds all look-ups of the names in one list of problems.
const lookupLimit = 2 * time.Second

// namesRefused follows a DNS name where an address is wanted.
const namesRefused = " is a name, and a DNS server must not choose the API servers; write its " +
	"addresses"

// lookup returns the addresses of a DNS name. Tests replace it.
var lookup = func(ctx context.Context, name string) ([]netip.Addr, error) {
	return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
}

// isName reports whether text is a DNS name with a port. The last label of a name is never a number
// (RFC 3696 section 2).
func isName(text string) bool {
	host, port, err := net.SplitHostPort(text)
	_, portErr := strconv.ParseUint(port, 10, 16)
	_, numberErr := strconv.ParseUint(host[strings.LastIndexByte(host, '.')+1:], 10, 64)
	return err == nil && portErr == nil && numberErr != nil && len(host) <= 253 &&
		nodeName.MatchString(strings.ToLower(host))
}

// suggestAddrs looks up the DNS names in problems and appends their present addresses to the texts,
// so that the operator can check and use them. It looks up at most MaxAPIFrontends names.
func suggestAddrs(problems []error) {
	ctx, cancel := context.WithTimeout(context.Background(), lookupLimit)
	defer cancel()
	names := 0
	for _, err := range problems {
		var p *problem
		if !errors.As(err, &p) || p.name == "" || names == MaxAPIFrontends {
			continue
		}
		names++
		p.text += addrsOf(ctx, p.name)
	}
}

// addrsOf returns the end of an error text that suggests the addresses of name, which has a port.
func addrsOf(ctx context.Context, name string) string {
	host, port, err := net.SplitHostPort(name)
	if err != nil {
		return ""
	}
	addrs, err := lookup(ctx, host)
	if err != nil {
		return fmt.Sprintf(" (it cannot be resolved here: %v)", err)
	}

	var write []string
	for _, a := range addrs {
		write = append(write, strconv.Quote(net.JoinHostPort(a.Unmap().String(), port)))
	}
	slices.Sort(write)
	return ", if they are right: " + strings.Join(slices.Compact(write), ", ")
}
