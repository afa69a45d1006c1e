package apiserver

import (
	"net/netip"
	"slices"
	"strconv"

	"github.com/kubeveil/kubeveil/pkg/config"
)

// Ports of the API servers: of their service, and of a server whose port is not known (kubeadm's
// default).
const (
	apiServicePort = 443
	apiServerPort  = 6443
)

// ServiceOfPod returns the address of the API servers' service that the kubelet passes to the
// containers of a pod; invalid if there is none.
func ServiceOfPod(env func(string) string) netip.AddrPort {
	addr, err := netip.ParseAddr(env("KUBERNETES_SERVICE_HOST"))
	port, portErr := strconv.ParseUint(env("KUBERNETES_SERVICE_PORT"), 10, 16)
	if err != nil || portErr != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(addr, uint16(port))
}

// KnownBefore returns the API servers that are known before they are listed. Their service's
// address is asked, from veild's own credentials, or told, from the kubelet, if that address is in
// a service range. Otherwise it is the first address of the first service range, which
// kube-apiserver takes by default. Beside another proxy nothing is guessed. The servers come from
// the configuration, from veild's credentials, and from last, the last good table.
func KnownBefore(cfg config.Config, asked, told netip.AddrPort,
	last []netip.Addr) Known {
	known := Known{Configured: cfg.Services.APIServers, Host: cfg.Services.APIFrontends}
	if cfg.ServiceProxy == config.ServiceProxyEBPF && len(cfg.ServiceRanges) > 0 {
		known.Guessed = []netip.AddrPort{
			netip.AddrPortFrom(cfg.ServiceRanges[0].Masked().Addr().Next(), apiServicePort)}
	}

	translated := func(addr netip.Addr) bool {
		return slices.ContainsFunc(cfg.ServiceRanges,
			func(r netip.Prefix) bool { return r.Contains(addr.Unmap()) })
	}

	for _, addr := range []netip.AddrPort{asked, told} {
		if addr.IsValid() && translated(addr.Addr()) {
			known.Frontends = append(known.Frontends,
				netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()))
		}
	}

	port := uint16(apiServerPort)
	if asked.IsValid() && !translated(asked.Addr()) {
		known.Remembered = append(known.Remembered, asked)
		port = asked.Port()
	}

	for _, addr := range last {
		if !translated(addr) && addr != asked.Addr() {
			known.Remembered = append(known.Remembered, netip.AddrPortFrom(addr, port))
		}
	}

	return known
}
