package service

import (
	"errors"
	"fmt"
)

var (
	// ErrFull means that a map has no room for a service. The service keeps its former entries.
	ErrFull = errors.New("table of services is full")
	// ErrConflict means that another service has the frontend.
	ErrConflict = errors.New("frontend is taken")
	// ErrReserved means that the frontend belongs to the cluster itself.
	ErrReserved = errors.New("frontend is reserved")
	// ErrNotSupported means that the table does not serve the port.
	ErrNotSupported = errors.New("not supported")
	// ErrLimits means that a limit is not valid.
	ErrLimits = errors.New("bad limits")
)

// Names of the limits, as in the configuration.
const (
	LimitFrontends    = "frontends"
	LimitBackendSlots = "backendSlots"
	LimitSourceRanges = "sourceRanges"
)

// FullError is an ErrFull: Service needs Want more entries of the map whose size Limit sets.
type FullError struct {
	Service Name
	Limit   string // the key below services.limits of the configuration
	Size    uint32
	Want    int
}

func (e *FullError) Error() string {
	return fmt.Sprintf("service %s: %v: it needs %d free entries of %d, and keeps its earlier "+
		"backends until then; raise services.limits.%s", e.Service, ErrFull, e.Want, e.Size,
		e.Limit)
}

func (e *FullError) Unwrap() error { return ErrFull }

// Conflict returns an ErrConflict: owner has the frontend that claimant claims.
func Conflict(claimant, owner Name, k FrontendKey) error {
	return fmt.Errorf("service %s: %s %s: %w by service %s: use another address or port", claimant,
		k.Protocol, k.AddrPort(), ErrConflict, owner)
}

// Reserved returns an ErrReserved: claimant claims a frontend by an external IP, a LoadBalancer IP
// or a NodePort, but what already uses it.
func Reserved(claimant Name, k FrontendKey, what string) error {
	return fmt.Errorf("service %s: %s %s: %w for %s: use another address or port", claimant,
		k.Protocol, k.AddrPort(), ErrReserved, what)
}

// NotSupported returns an ErrNotSupported: the table has no frontends for a port of a service.
func NotSupported(n Name, p Port) error {
	return fmt.Errorf("service %s: port %d: %s is %w by veild: only another proxy can serve it", n,
		p.Port, p.Protocol, ErrNotSupported)
}
