package rules

import (
	"fmt"
	"io"
	"net/netip"
)

// Service is a port of a service.
type Service struct {
	// Namespace and Name are its names, Port is the name of its only port.
	Namespace, Name, Port string
	ClusterIP             netip.Addr
	// External is the address of a balancer; the zero value means that there is none.
	External netip.Addr
	// Number is the port of the service, Target the port of its backends.
	Number, Target uint16
	// Backends are not local to the node; at least one.
	Backends []netip.Addr
	// Idle reports whether the service receives no packets.
	Idle bool
}

// String is kube-proxy's name of a service's port.
func (s Service) String() string { return s.Namespace + "/" + s.Name + ":" + s.Port }

// Node holds the addresses of the node that rules need.
type Node struct {
	// Pods are the addresses of pods, whose packets to services keep their source.
	Pods netip.Prefix
	// Services are the addresses of services.
	Services netip.Prefix
	// Addrs are the node's addresses on which node ports are served.
	Addrs []netip.Addr
}

// mark is the bit that marks packets whose source is to be translated, kube-proxy's default.
const mark = "0x4000"

// printer keeps the first error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
	}
}
