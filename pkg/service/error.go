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

// Unwrap returns ErrFull.
func (e *FullError) Unwrap() error { return ErrFull }

// ConflictError is an ErrConflict: Owner has the frontend that Service claims.
type ConflictError struct {
	Service, Owner Name
	Frontend       FrontendKey
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("service %s: %s %s: %v by service %s: use another address or port",
		e.Service, e.Frontend.Protocol, e.Frontend.AddrPort(), ErrConflict, e.Owner)
}

// Unwrap returns ErrConflict.
func (e *ConflictError) Unwrap() error { return ErrConflict }

// ReservedError is an ErrReserved: Service claims Frontend by an external IP, a LoadBalancer IP or
// a NodePort, but What already uses it.
type ReservedError struct {
	Service  Name
	Frontend FrontendKey
	What     string
}

func (e *ReservedError) Error() string {
	return fmt.Sprintf("service %s: %s %s: %v for %s: use another address or port",
		e.Service, e.Frontend.Protocol, e.Frontend.AddrPort(), ErrReserved, e.What)
}

// Unwrap returns ErrReserved.
func (e *ReservedError) Unwrap() error { return ErrReserved }

// PortError is an ErrNotSupported: the table has no frontends for the port.
type PortError struct {
	Service Name
	Port    Port
}

func (e *PortError) Error() string {
	return fmt.Sprintf("service %s: port %d: %s is %v by veild: only another proxy can serve it",
		e.Service, e.Port.Port, e.Port.Protocol, ErrNotSupported)
}

// Unwrap returns ErrNotSupported.
func (e *PortError) Unwrap() error { return ErrNotSupported }
