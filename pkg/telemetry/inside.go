package telemetry

import (
	"net"
	"net/http"
	"net/netip"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// inside passes requests on to next if their answers do not cross the network in clear, and counts
// and refuses others. A program of this node asks from a loopback address, or from the address that
// it asks at. A pod asks from an address in pods: the guard drops such a source outside a tunnel,
// and the route of the answer leads into the tunnel, or to a pod of this node.
func inside(pods []netip.Prefix, refused prometheus.Counter, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from := addrOf(r.RemoteAddr)
		own := from.IsLoopback()
		if at, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
			own = own || from == addrOf(at.String())
		}
		if !from.IsValid() || !own && !slices.ContainsFunc(pods, func(p netip.Prefix) bool {
			return p.Contains(from)
		}) {
			refused.Inc()
			http.Error(w, "metrics are for pods and for programs of this node: the answer to "+
				from.String()+" would cross the network in clear", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// addrOf returns the address of an address with a port. The zero Addr means that there is none.
func addrOf(text string) netip.Addr {
	a, err := netip.ParseAddrPort(text)
	if err != nil {
		return netip.Addr{}
	}
	return a.Addr().Unmap().WithZone("")
}
